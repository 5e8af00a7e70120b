"""A killed run that is recovered ends as if it had not been killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

from beem_plugin.commands import SigTermReceived, sigterm_raises
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training import checkpointer as checkpointer_module
from beem_plugin.training.checkpointer import Checkpointer
from beem_plugin.training.train import train_model
from tests.forked import command
from tests.training.configs import HERE, params, read_metrics

EVERYTHING = {
    "train_data_path": "train:61",
    "model__dropout": 0.4,
    "data_loader__batch_size": 4,
    "trainer__num_epochs": 4,
    "trainer__callbacks": ["kill"],
    "trainer__num_gradient_accumulation_steps": 3,
    "trainer__learning_rate_scheduler": {"type": "linear_with_warmup", "warmup_steps": 0.2},
    "trainer__validation_metric": ["+accuracy", "-loss"],
    "trainer__grad_norm": 1.0,
    "trainer__checkpointer": {"save_every_num_batches": 5},
}


def run_and_kill(config_path: Path, run: Path, kill_at: str) -> None:
    given = ("train", str(config_path), "-s", str(run), "--include-package", "tiny_components")
    finished = command(*given, folder=run.parent, path=HERE, KILL_AT=kill_at)
    assert finished.returncode == -signal.SIGKILL, finished.stderr


@pytest.mark.parametrize("kill_at", ["0:3", "1:15"])
def test_killed_run_recovers_to_the_last_digit(tmp_path: Path, kill_at: str) -> None:
    """Killed before the first checkpoint, and in the middle of the second epoch, after its checkpoint at batch 12."""
    config = params(**EVERYTHING)
    train_model(config, tmp_path / "whole")
    config_path = tmp_path / "config.json"
    config_path.write_text(json.dumps(config.as_dict(quiet=True)))
    run_and_kill(config_path, tmp_path / "killed", kill_at)
    assert not (tmp_path / "killed" / "metrics.json").exists()
    names = {path.name for path in (tmp_path / "killed").glob("training_state*")}
    assert names == (set() if kill_at == "0:3" else {"training_state_e1_b6.th", "training_state_e1_b12.th"})
    train_model(config, tmp_path / "killed", recover=True)
    for name in ("metrics.json", *(f"metrics_epoch_{epoch}.json" for epoch in range(4))):
        assert read_metrics(tmp_path / "whole", name) == read_metrics(tmp_path / "killed", name)
    for name in ("best.th", "model_state_e4_b0.th"):
        whole, killed = (torch.load(tmp_path / run / name, weights_only=True) for run in ("whole", "killed"))
        assert all(torch.equal(whole[key], killed[key]) for key in whole)


def test_patience_and_best_metrics_survive(tmp_path: Path) -> None:
    """Recovering an interrupted run keeps the epochs without improvement and the best validation metrics."""
    overfit = {"train_data_path": "train:10", "trainer__optimizer__lr": 0.3, "trainer__num_epochs": 30}
    callbacks = [{"type": "interrupt", "epoch": 100}]
    train_model(params(**overfit, trainer__patience=3, trainer__callbacks=callbacks), tmp_path / "whole")
    stopped = read_metrics(tmp_path / "whole")
    assert stopped["epoch"] == stopped["best_epoch"] + 3 < 29
    run = tmp_path / "run"
    callbacks = [{"type": "interrupt", "epoch": stopped["epoch"] - 1}]
    interrupted = params(**overfit, trainer__patience=3, trainer__callbacks=callbacks)
    with pytest.raises(KeyboardInterrupt):
        train_model(interrupted, run)
    config = json.loads((run / "config.json").read_text())
    config["trainer"]["callbacks"][0]["epoch"] = 100
    (run / "config.json").write_text(json.dumps(config))
    train_model(
        params(**overfit, trainer__patience=3, trainer__callbacks=[{"type": "interrupt", "epoch": 100}]), run, True
    )
    assert read_metrics(run) == stopped


def test_a_checkpoint_with_other_names_is_refused(tmp_path: Path) -> None:
    """As that of a run under another release of transformers: the optimizer's state knows parameters by their order."""
    config = params(trainer__num_epochs=1)
    train_model(config, tmp_path)
    (tmp_path / "metrics.json").unlink()
    (tmp_path / "meta.json").write_text('{"transformers": "5.0.0"}')
    path = tmp_path / "model_state_e1_b0.th"
    state = torch.load(path, weights_only=True)
    torch.save({f"{name}_renamed": value for name, value in state.items()}, path)
    with pytest.raises(ConfigurationError, match="has other parameters than the model"):
        train_model(config, tmp_path, recover=True)
    assert json.loads((tmp_path / "meta.json").read_text()) == {"transformers": "5.0.0"}


def test_failure_while_writing_leaves_the_older_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, 0, {"weight": torch.ones(2)}, {"epochs_completed": 1})

    def half_a_file(obj: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpointer_module.torch, "save", half_a_file)
    with pytest.raises(OSError, match="no space"):
        checkpointer.save(2, 0, {}, {})
    monkeypatch.undo()
    # Killed between the two files: weights without a training state are no checkpoint.
    (tmp_path / "model_state_e3_b0.th").write_bytes(b"")
    loaded = checkpointer.load()
    assert loaded is not None and loaded[1] == {"epochs_completed": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"model_state_e1_b0.th", "training_state_e1_b0.th"}


def test_old_checkpoints_are_deleted(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, keep_most_recent_by_count=2)
    for epochs, batches in ((0, 10), (1, 0), (9, 0), (10, 5)):
        checkpointer.save(epochs, batches, {}, {})
    assert checkpointer.checkpoints() == [(9, 0), (10, 5)]
    assert not list(tmp_path.glob("model_state_e1_*"))
    keeps_all = Checkpointer(tmp_path / "all", keep_most_recent_by_count=None)
    for epochs in range(4):
        keeps_all.save(epochs, 0, {}, {})
    assert len(keeps_all.checkpoints()) == 4


def test_checkpoints_hold_no_code(tmp_path: Path) -> None:
    """Every file loads with `weights_only=True`, also with torch's own schedulers, whose state holds a Counter."""
    scheduler = {"type": "multi_step", "milestones": [1, 2]}
    train_model(params(trainer__learning_rate_scheduler=scheduler), tmp_path / "run")
    loaded = {path.name: torch.load(path, weights_only=True) for path in (tmp_path / "run").glob("*.th")}
    kinds = {name.split("_e")[0] for name in loaded}
    assert kinds == {"best.th", "model_state", "training_state"}
    newest = max((name for name in loaded if name.startswith("training_state")), key=lambda name: int(name[16]))
    assert loaded[newest]["learning_rate_scheduler"]["milestones"] == {1: 1, 2: 1}


@pytest.mark.parametrize("ignored", [False, True])
def test_a_signal_within_a_save_acts_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: bool) -> None:
    """An exception from within `torch.save`'s writing aborts the process; an ignored Ctrl-C hides no SIGTERM."""
    saved = torch.save

    def save(obj: object, file: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        saved(obj, file)

    monkeypatch.setattr(torch, "save", save)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        with sigterm_raises(), pytest.raises(KeyboardInterrupt) as raised:
            checkpointer_module.save_torch({"weight": torch.ones(2)}, tmp_path / "best.th")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (raised.type is SigTermReceived) == ignored
    assert torch.equal(checkpointer_module.load_torch(tmp_path / "best.th")["weight"], torch.ones(2))
