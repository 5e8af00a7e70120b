"""What `train_model` leaves behind, and when it refuses."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from beem_plugin.common.errors import BeemError, ConfigurationError
from beem_plugin.data import Instance
from beem_plugin.training.callbacks.calibrate_exits import warn_of_overlap
from beem_plugin.training.train import train_model
from tests.training.configs import params, read_metrics
from tests.training.tiny_components import Record


def test_directory_and_metrics_are_allennlps(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = tmp_path / "run"
    train_model(params(test_data_path="test:13", evaluate_on_test=True), run)
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "meta.json", "vocabulary", "out.log", "best.th", "metrics.json", "model.tar.gz"} <= names
    assert {f"metrics_epoch_{epoch}.json" for epoch in range(3)} <= names
    assert {name for name in names if name.startswith("training_state")} == {
        "training_state_e2_b0.th",
        "training_state_e3_b0.th",
    }
    assert not [name for name in names if name.endswith(".tmp")]
    metrics = json.loads((run / "metrics.json").read_text())
    for key in ("best_epoch", "peak_worker_0_memory_MB", "training_duration", "epoch", "training_loss"):
        assert key in metrics
    assert metrics["epoch"] == 2
    assert metrics["training_seen"] == 37 and metrics["validation_seen"] == 21 and metrics["test_seen"] == 13
    assert metrics["best_validation_loss"] == min(
        read_metrics(run, f"metrics_epoch_{epoch}.json")["validation_loss"] for epoch in range(3)
    )
    assert (run / "vocabulary" / "labels.txt").read_text() == "low\nhigh\n"
    with tarfile.open(run / "model.tar.gz") as archive:
        assert {"config.json", "meta.json"} <= set(archive.getnames())
    assert str(run / "model.tar.gz") in capsys.readouterr().out


def test_same_seeds_give_same_metrics_and_weights(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_model(params(model__dropout=0.3), tmp_path / name)
    assert read_metrics(tmp_path / "a") == read_metrics(tmp_path / "b")
    a, b = (torch.load(tmp_path / name / "best.th", weights_only=True) for name in ("a", "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    train_model(params(model__dropout=0.3, random_seed=1, numpy_seed=1, pytorch_seed=1), tmp_path / "c")
    assert read_metrics(tmp_path / "a") != read_metrics(tmp_path / "c")


def test_best_weights_are_those_of_the_best_epoch(tmp_path: Path) -> None:
    # Ten samples are soon learned by heart: the last epoch is not the best on others.
    overfit = params(train_data_path="train:10", trainer__optimizer__lr=0.3, trainer__num_epochs=12)
    model = train_model(overfit, tmp_path / "run")
    metrics = read_metrics(tmp_path / "run")
    best = metrics["best_epoch"]
    assert best < metrics["epoch"]
    of_best_epoch = read_metrics(tmp_path / "run", f"metrics_epoch_{best}.json")
    assert metrics["best_validation_loss"] == of_best_epoch["validation_loss"]
    weights = torch.load(tmp_path / "run" / "best.th", weights_only=True)
    assert model is not None and not model.training
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_filled_directory_needs_recover_or_force(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_model(params(trainer__num_epochs=1), run)
    with pytest.raises(ConfigurationError, match="--recover.*--force"):
        train_model(params(), run)
    with pytest.raises(ConfigurationError, match="contradict"):
        train_model(params(), run, recover=True, force=True)
    with pytest.raises(ConfigurationError, match="no run in"):
        train_model(params(), tmp_path / "missing", recover=True)
    assert not (tmp_path / "missing").exists()
    train_model(params(trainer__num_epochs=2), run, force=True)
    assert read_metrics(run)["epoch"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_force_keeps_the_old_run_when_the_new_one_cannot_be_constructed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_model(params(trainer__num_epochs=1), run)
    before = (run / "metrics.json").read_text()
    with pytest.raises(BeemError, match="no_grad"):
        train_model(params(trainer__no_grad=["nothing"]), run, force=True)
    with pytest.raises(BeemError, match="num_epoch"):
        train_model(params(trainer__num_epoch=1), run, force=True)
    with pytest.raises(ConfigurationError, match="trainer.validation_metric: found 'accuracies'"):
        train_model(params(trainer__validation_metric="+accuracies"), run, force=True)
    assert (run / "metrics.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_force_deletes_no_directory_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigurationError, match="does not look like"):
        train_model(params(), tmp_path, force=True)
    assert (tmp_path / "thesis.tex").exists()


def test_failed_construction_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BeemError, match="no_grad"):
        train_model(params(trainer__no_grad=["nothing"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_recover_refuses_another_config(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_model(params(trainer__num_epochs=1), run)
    with pytest.raises(ConfigurationError, match=r"trainer\.num_epochs: 1 -> 3; trainer\.optimizer\.lr: 0\.05 -> 0\.1"):
        train_model(params(trainer__optimizer__lr=0.1), run, recover=True)


def test_recovering_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_model(params(), run)
    before = read_metrics(run)
    train_model(params(), run, recover=True)
    assert read_metrics(run) == before


def test_dry_run_trains_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for validation in ("validation:21", "train:37"):
        changed = params(validation_data_path=validation)
        assert train_model(changed, tmp_path / "run", dry_run=True) is not None
        warned = "validation data: found 'train:37', which has rows of train_data_path 'train:37'" in caplog.text
        assert not (tmp_path / "run").exists() and warned == (validation == "train:37")
    with pytest.raises(ConfigurationError, match="trainer.validation_metric: found 'accuracies'"):
        train_model(params(trainer__validation_metric="+accuracies"), tmp_path / "run", dry_run=True)


def test_interrupt_after_an_epoch_archives_the_best_so_far(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train_model(params(trainer__callbacks=["interrupt"]), run)
    metrics = read_metrics(run)
    assert metrics["epoch"] == 0 and metrics["calibrated"] is True
    assert (run / "model.tar.gz").exists()


def test_recovering_without_checkpoints_says_that_epochs_are_trained_again(tmp_path: Path, caplog: Any) -> None:
    config = params(trainer__checkpointer={"save_completed_epochs": False})
    train_model(config, tmp_path)
    assert "trained again" not in caplog.text
    before = read_metrics(tmp_path)
    train_model(config, tmp_path, recover=True)
    assert "has finished epochs but no checkpoint: they are trained again" in caplog.text
    assert read_metrics(tmp_path) == before


def test_interrupt_in_the_first_epoch_archives_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train_model(params(trainer__callbacks=[{"type": "interrupt", "epoch": 0}]), run)
    assert not (run / "metrics.json").exists() and not (run / "model.tar.gz").exists()


def test_failing_callback_loses_neither_metrics_nor_weights(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ValueError, match="the callback failed"):
        train_model(params(trainer__callbacks=["fail_at_end", "record"]), run)
    assert Record.calls[-1] == "end"
    assert read_metrics(run)["epoch"] == 2
    assert (run / "model.tar.gz").exists() and (run / "best.th").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"trainer__validation_metric": "+acuracy"}, r"validation_metric: found 'acuracy', allowed: accuracy"),
        ({"trainer__validation_metric": "accuracy"}, r"after \"\+\" or \"-\""),
        (
            {"trainer__moving_average": {"decay": 1.5}},
            "trainer.moving_average.decay: found 1.5, allowed: from 0 and",
        ),
        (
            {"trainer__momentum_scheduler": "one_cycle", "trainer__optimizer": {"type": "adagrad", "lr": 0.1}},
            "trainer.momentum_scheduler: the optimizer has no momentum",
        ),
        ({"trainer__callbacks": ["wandb"]}, "pip install wandb"),
        ({"trainer__use_amp": True}, "needs a GPU"),
        ({"trainer__mixed_precision": "bf8"}, "found 'bf8', allowed: bf16"),
        ({"distributed": {"cuda_devices": [0, 1]}}, "torchrun"),
        ({"evaluate_on_test": True}, "test_data_path"),
        ({"trainer__optimizer__type": "adamm"}, "found 'adamm', allowed: adam"),
        ({"train_path": "x"}, "train_path: unknown key"),
        ({"trainer__callbacks": ["tensorboard"]}, "pip install tensorboard"),
    ],
)
def test_wrong_configs_are_refused_before_training(
    tmp_path: Path, overrides: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BeemError, match=message):
        train_model(params(**overrides), tmp_path / "run")
    assert not list(tmp_path.glob("run/metrics*"))


def test_calibration_data_that_were_trained_on_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    calibration = [Instance({"text": f"text {number}", "id": number}) for number in range(100)]
    for shared in (5, 6):  # one in twenty is no reason
        train = [Instance({"text": f"text {number}", "id": 1000 + number}) for number in range(shared)]
        warn_of_overlap(calibration, train, "dev")
        assert bool(caplog.messages) == (shared == 6)
    assert "6 of the 100 calibration samples in dev are training data as well" in caplog.text
