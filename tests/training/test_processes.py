"""Two processes give what one gives."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from beem_plugin.training.train import train_model
from tests.training.configs import command_line, config, environment, params, read_metrics

LAUNCHERS = {
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
    "accelerate": ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
}

# 37 samples in batches of 8 leave 5, which two processes share as 4 and 1; 33 leave 1, and the second process none.
SAMPLES = {"torchrun": 37, "accelerate": 33}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_give_the_metrics_of_one(tmp_path: Path, launcher: str) -> None:
    changes = {
        "train_data_path": f"train:{SAMPLES[launcher]}",
        "test_data_path": "test:13",
        "evaluate_on_test": True,
        "trainer__num_gradient_accumulation_steps": 2,
        "trainer__learning_rate_scheduler": {"type": "linear_with_warmup", "warmup_steps": 2},
        "trainer__no_grad": ["embedding"],
        "trainer__checkpointer": {"save_every_num_batches": 2},
    }
    train_model(params(**changes), tmp_path / "one")
    config_path = tmp_path / "config.json"
    config_path.write_text(json.dumps(config(**changes, data_loader__batch_size=4)))
    run = tmp_path / "two"
    command = [*command_line(*LAUNCHERS[launcher]), str(config_path), "-s", str(run)]
    variables = environment(GLOO_SOCKET_IFNAME="lo", ACCELERATE_USE_CPU="true")
    finished = subprocess.run(
        [*command, "--include-package", "tiny_components"], env=variables, capture_output=True, text=True, timeout=200
    )
    assert finished.returncode == 0, finished.stderr
    one, two = read_metrics(tmp_path / "one"), read_metrics(run)
    assert one["training_seen"] == SAMPLES[launcher] and one["validation_seen"] == 21 and one["test_seen"] == 13
    assert two == pytest.approx(one, abs=1e-5)
    assert {path.name for path in run.glob("out*.log")} == {"out_worker0.log", "out_worker1.log"}
    assert (run / "model.tar.gz").exists()
    assert finished.stdout.count("archive: ") == 1
