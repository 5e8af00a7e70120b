"""The callbacks `wandb`, `mlflow` and `tensorboard`, with fakes in place of the packages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.callbacks.trackers import MLflowCallback
from beem_plugin.training.train import train_model
from tests.training.configs import params, read_metrics
from tests.training.interrupted import NEVER

Call = tuple[str, Any, Any]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What the fakes of all packages are called with: (function, first argument, options)."""
    found: list[Call] = []

    def record(name: str, result: Any = None) -> Any:
        def call(first: Any = None, **options: Any) -> Any:
            found.append((name, first, options))
            return result

        return call

    wandb: Any = ModuleType("wandb")
    run = SimpleNamespace(id="run7", **{name: record(name) for name in ("log", "save", "finish", "watch")})
    wandb.init, wandb.Histogram = record("init", run), np.copy
    mlflow: Any = ModuleType("mlflow")
    for name in ("set_experiment", "log_params", "log_metrics", "end_run"):
        setattr(mlflow, name, record(name))
    mlflow.start_run = record("start_run", SimpleNamespace(info=SimpleNamespace(run_id="run8")))
    board: Any = ModuleType("torch.utils.tensorboard")

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            self.folder = Path(folder).name

        def add_scalar(self, name: str, value: float, step: int) -> None:
            found.append((f"{self.folder}/{name}", value, step))

        def add_histogram(self, name: str, values: torch.Tensor, step: int) -> None:
            found.append((f"{self.folder}/{name}", values.shape, step))

        def close(self) -> None:
            found.append(("close", self.folder, None))

    board.SummaryWriter = SummaryWriter
    for module in (wandb, mlflow, board):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


def of(calls: list[Call], name: str) -> list[tuple[Any, Any]]:
    return [(first, options) for called, first, options in calls if called == name]


def test_wandb_gets_config_curves_and_the_best_metrics(tmp_path: Path, calls: list[Call]) -> None:
    callback = {
        "type": "wandb",
        "summary_interval": 3,
        "project": "exits",
        "tags": ["tiny"],
        "wandb_kwargs": {"mode": "x"},
    }
    train_model(params(trainer__callbacks=[callback], trainer__grad_norm=1.0), tmp_path / "run")
    ((_, options),) = of(calls, "init")
    assert (options["project"], options["tags"], options["mode"], options["id"]) == ("exits", ["tiny"], "x", None)
    assert options["config"]["trainer"]["callbacks"] == [callback] and options["dir"] == str(tmp_path / "run")
    assert [Path(path).name for path, _ in of(calls, "save")] == ["config.json", "out.log"]
    logged = [(options["step"], values) for values, options in of(calls, "log")]
    # 15 steps in 3 epochs; after each epoch both splits; at the end the best metrics.
    assert [step for step, _ in logged] == [3, 5, 5, 6, 9, 10, 10, 12, 15, 15, 15, 15]
    assert {"train/loss", "train/gradient_norm", "train/learning_rate/group_0"} <= set(logged[0][1])
    metrics = read_metrics(tmp_path / "run")
    assert logged[-2][1]["validation/epoch/loss"] == metrics["validation_loss"]
    assert logged[-1][1]["best_validation_loss"] == metrics["best_validation_loss"] and "epoch" not in logged[-1][1]
    assert calls[-1][0] == "finish" and not of(calls, "watch")


def test_mlflow_continues_its_run_after_an_interrupt(tmp_path: Path, calls: list[Call]) -> None:
    def config(epoch: int) -> Any:
        callbacks = [{"type": "mlflow", "experiment_name": "exits"}, {"type": "interrupt", "epoch": epoch}]
        return params(trainer__callbacks=callbacks)

    with pytest.raises(KeyboardInterrupt):
        train_model(config(1), tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace('"epoch": 1', f'"epoch": {NEVER}'))
    train_model(config(NEVER), tmp_path / "run", recover=True)
    assert [options["run_id"] for _, options in of(calls, "start_run")] == [None, "run8"]
    assert [name for name, _ in of(calls, "set_experiment")] == ["exits", "exits"]
    ((given, _),) = of(calls, "log_params")  # once
    assert given["trainer.optimizer.lr"] == "0.05" and all(isinstance(value, str) for value in given.values())
    values, options = of(calls, "log_metrics")[-1]
    assert options["step"] == 15 and "best_validation_loss" in values and len(of(calls, "end_run")) == 2


def test_tensorboard_has_a_folder_for_each_split(tmp_path: Path, calls: list[Call]) -> None:
    keys = {"batch_size_interval": 2, "batch_loss_moving_average_count": 2}
    callback = {"type": "tensorboard", "summary_interval": 1, "should_log_learning_rate": False, **keys}
    train_model(params(trainer__callbacks=[callback]), tmp_path / "run")
    assert [step for _, step in of(calls, "train/loss")] == list(range(1, 16))
    assert [step for _, step in of(calls, "validation/epoch/loss")] == [0, 1, 2]
    assert not of(calls, "train/learning_rate/group_0")
    losses, means = ([value for value, _ in of(calls, f"train/batch_loss{end}")] for end in ("", "_mov_avg"))
    assert means[:3] == pytest.approx([losses[0], (losses[0] + losses[1]) / 2, (losses[1] + losses[2]) / 2])
    assert of(calls, "train/batch_size") == [(8, 2), (8, 4), (8, 6), (8, 8), (5, 10), (8, 12), (8, 14)]
    assert of(calls, "train/mean_batch_size")[3:] == [(8, 8), (37 / 5, 10), (8, 12), (8, 14)]
    assert {folder for folder, _ in of(calls, "close")} == {"train", "validation"}


@pytest.mark.parametrize("type", ["tensorboard", "wandb", "mlflow"])
def test_statistics_and_histograms_of_parameters(tmp_path: Path, calls: list[Call], type: str) -> None:
    keys = {"should_log_parameter_statistics": True, "distribution_interval": None if type == "mlflow" else 6}
    callback = {"type": type, "summary_interval": 10, **keys}
    trained = train_model(params(trainer__callbacks=[callback], trainer__num_epochs=2), tmp_path / "run")
    name, weight = max(trained.named_parameters(), key=lambda one: one[1].numel())
    if type == "tensorboard":
        assert of(calls, f"train/parameter_histograms/{name}") == [(weight.shape, 6)]
        logged = {called: first for called, first, options in calls if options == 10}
    else:
        found = [(values, options["step"]) for values, options in of(calls, "log") + of(calls, "log_metrics")]
        histograms = [(each, step) for each, step in found if f"train/parameter_histograms/{name}" in each]
        assert [step for _, step in histograms] == ([] if type == "mlflow" else [6])
        logged = {key: value for values, step in found if step == 10 for key, value in values.items()}
    for kind in ("parameter_mean", "parameter_std", "gradient_mean", "gradient_std"):
        assert isinstance(logged[f"train/{kind}/{name}"], float)
    assert logged[f"train/parameter_std/{name}"] > 0


def test_mlflow_has_no_histograms(calls: list[Call], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="distribution_interval: found 5, allowed: null"):
        MLflowCallback(tmp_path, distribution_interval=5)
