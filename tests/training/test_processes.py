"""Two processes give what one gives."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import pytest
import torch

import beem_plugin.components  # noqa: F401
from beem_plugin.training.train import train_model
from tests.forked import process, train_twice, two_processes
from tests.objectives.tiny_model import tiny_batch, tiny_model
from tests.training.configs import HERE, config, environment, params, read_metrics

ACCELERATE = ("--multi_gpu", "--num_processes", "2", "--num_machines", "1", "-m", "beem_plugin", "train")

# 37 samples in batches of 8 leave 5, which two processes share as 4 and 1; 33 leave 1, and the second process none.
SAMPLES = {"torchrun": 37, "accelerate": 33}


def launch(*arguments: str) -> None:
    """`accelerate launch ARGUMENTS`, which starts torchrun in its turn."""
    os.environ.update(environment(GLOO_SOCKET_IFNAME="lo", ACCELERATE_USE_CPU="true"))
    sys.argv = ["accelerate", *arguments]
    runpy.run_module("accelerate.commands.launch", run_name="__main__")


@pytest.mark.parametrize("launcher", SAMPLES)
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
    given = [str(config_path), "-s", str(run), "--include-package", "tiny_components"]
    if launcher == "accelerate":
        done = [process(launch, *ACCELERATE, *given, folder=tmp_path)]
    else:
        done = train_twice(*given, folder=tmp_path, path=HERE)
    assert not any(one.returncode for one in done), [one.stderr for one in done]
    printed = "".join(one.stdout for one in done)
    one, two = read_metrics(tmp_path / "one"), read_metrics(run)
    assert one["training_seen"] == SAMPLES[launcher] and one["validation_seen"] == 21 and one["test_seen"] == 13
    assert two == pytest.approx(one, abs=1e-5)
    assert {path.name for path in run.glob("out*.log")} == {"out_worker0.log", "out_worker1.log"}
    assert (run / "model.tar.gz").exists()
    assert printed.count("archive: ") == 1


def train_with_learned_forks() -> None:
    """Run in each process. The group is not taken down: with threads of gloo at work, that may wait forever."""
    torch.distributed.init_process_group("gloo")
    objective = {"type": "contrastive", "objective": {"type": "weighted_distillation", "curriculum": "gradual"}}
    keys = {"fork": "gradnorm", "layer_dropout": {"max_rate": 0.9}, "branch": "adapter"}
    model = tiny_model(objective, **keys)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        model.start_step(step, 4)
        optimizer.zero_grad()
        parallel(**tiny_batch())["loss"].backward()
        optimizer.step()
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert bool((model.encoder.fork.log_ratio != 0).all())  # type: ignore[operator]


def test_learned_forks_and_skipped_layers_under_data_parallelism(tmp_path: Path) -> None:
    """Every parameter has a gradient in every step, and factors that the backward pass changes are broadcast."""
    for finished in two_processes(train_with_learned_forks, folder=tmp_path):
        assert finished.returncode == 0, finished.stderr
