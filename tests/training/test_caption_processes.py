"""Two processes count the words of both."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.common.registry import Params
from beem_plugin.training.train import train_model
from tests.tiny_caption_configs import tiny
from tests.tiny_project import CONFIGS
from tests.training.configs import command_line, environment, read_metrics


@pytest.mark.parametrize("val", [9])  # three batches for two processes
def test_words_of_all_processes_count(tmp_path: Path, val: int) -> None:
    config = tiny(CONFIGS / "shapes_beem.jsonnet")
    config["dataset_reader"] |= {"num_val": val, "num_train": 16}
    # Nothing is learnt: how the loss is averaged over processes is not what is tested.
    config["trainer"] |= {"optimizer": {"type": "sgd", "lr": 0.0}, "callbacks": []}
    config["model"]["exit_policy"] = "final"
    decoder = config["model"]["decoder"]["backbone"]["decoder"]
    config["model"]["decoder"]["backbone"]["decoder"] = {
        **decoder,
        **{name: 0.0 for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")},
    }
    config["evaluate_on_test"] = False

    def with_batches(size: int) -> dict[str, Any]:
        return {**config, "data_loader": {"batch_size": size}, "validation_data_loader": {"batch_size": size}}

    train_model(Params(with_batches(8)), tmp_path / "one")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(with_batches(4)))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    command = [*command_line(*launcher), str(path), "-s", str(tmp_path / "two")]
    variables = environment(GLOO_SOCKET_IFNAME="lo", ACCELERATE_USE_CPU="true")
    finished = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200)
    assert finished.returncode == 0, finished.stderr
    one, two = read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two")
    counted = [name for name in one if name.endswith(("perplexity", "token_accuracy"))]
    assert len(counted) >= 2 * (2 + 2 * 3)
    for name in counted:
        assert two[name] == pytest.approx(one[name], rel=1e-5), name
    assert math.isfinite(two["validation_loss"])
