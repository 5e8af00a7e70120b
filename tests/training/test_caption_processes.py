"""Two processes, or the batches of a window, are put together word by word: captions differ in length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.common.registry import Params
from beem_plugin.training.train import train_model
from tests.forked import train_twice
from tests.tiny_caption_configs import tiny
from tests.tiny_captioner import batch, captioner
from tests.tiny_project import CONFIGS
from tests.training.configs import read_metrics


def config_without_dropout() -> dict[str, Any]:
    config = tiny(CONFIGS / "shapes_beem.jsonnet")
    config["trainer"] |= {"optimizer": {"type": "sgd", "lr": 0.05}, "callbacks": []}
    config["trainer"].pop("learning_rate_scheduler", None)
    config["model"]["exit_policy"] = "final"
    decoder = config["model"]["decoder"]["backbone"]["decoder"]
    config["model"]["decoder"]["backbone"]["decoder"] = {
        **decoder,
        **{name: 0.0 for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")},
    }
    config["evaluate_on_test"] = False
    return config


def test_a_window_of_batches_makes_the_step_of_a_large_one(tmp_path: Path) -> None:
    config = config_without_dropout()
    config["dataset_reader"] |= {"num_val": 9, "num_train": 22}
    for size, steps in ((8, 1), (2, 4)):
        trainer = {**config["trainer"], "num_gradient_accumulation_steps": steps, "num_epochs": 2}
        loader = {"type": "simple", "batch_size": size, "shuffle": False}
        loaders = {"data_loader": loader, "validation_data_loader": loader}
        train_model(Params({**config, **loaders, "trainer": trainer}), tmp_path / str(size))
    large, small = read_metrics(tmp_path / "8"), read_metrics(tmp_path / "2")
    assert small == pytest.approx(large, rel=1e-4)


def test_the_loss_is_a_mean_over_words() -> None:
    model, data = captioner(objective="final_exit"), batch(captions=6)
    halves = [{name: value[rows] for name, value in data.items()} for rows in (slice(0, 2), slice(2, 6))]
    units = [model.loss_units(half) for half in halves]
    assert sum(units) == model.loss_units(data) == int(data["attention_mask"].sum()) - 6 and units[0] * 2 != units[1]
    losses = [float(model(**half)["loss"].detach()) for half in halves]
    expected = sum(loss * number for loss, number in zip(losses, units, strict=True)) / sum(units)
    assert float(model(**data)["loss"].detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("val", [9])  # three batches for two processes
def test_words_of_all_processes_count(tmp_path: Path, val: int) -> None:
    config = config_without_dropout()
    config["dataset_reader"] |= {"num_val": val, "num_train": 16}

    def with_batches(size: int) -> dict[str, Any]:
        loader = {"type": "simple", "batch_size": size, "shuffle": False}
        return {**config, "data_loader": loader, "validation_data_loader": loader}

    train_model(Params(with_batches(8)), tmp_path / "one")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(with_batches(4)))
    for finished in train_twice(str(path), "-s", str(tmp_path / "two"), folder=tmp_path):
        assert finished.returncode == 0, finished.stderr
    one, two = read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two")
    counted = [name for name in one if name.endswith(("perplexity", "token_accuracy", "loss"))]
    assert len(counted) >= 2 * (3 + 2 * 3)
    for name in counted:
        assert two[name] == pytest.approx(one[name], rel=1e-4), name
