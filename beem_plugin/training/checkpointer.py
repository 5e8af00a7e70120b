"""Checkpoints, from which an interrupted run continues with the results of an uninterrupted one."""

import logging
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write
from beem_plugin.common.registry import Registrable
from beem_plugin.training.random_state import get_random_state, set_random_state
from beem_plugin.training.trainer import RunningTrainer

logger = logging.getLogger(__name__)

STATE_FILE = re.compile(r"training_state_e(\d+)_b(\d+)\.th$")


def save_torch(obj: Any, path: Path) -> None:
    """`torch.save` under a temporary name, so that a killed process never leaves a partial file."""
    with interrupts_deferred(), atomic_write(path, "wb") as file:
        torch.save(obj, file)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Ctrl-C and SIGTERM act at the end of the block: within `torch.save` their exception aborts the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for signal_number in received:  # until one raises
            signal.raise_signal(signal_number)


def load_torch(path: Path) -> Any:
    """`torch.load` to the CPU, without running code from the file."""
    return torch.load(path, map_location="cpu", weights_only=True)


@dataclass(eq=False)
class Checkpointer(Registrable):
    """
    Writes `model_state_e{E}_b{B}.th` and `training_state_e{E}_b{B}.th`, E completed epochs and B batches of the next.

    Registered as a `Checkpointer` with name "default".

    # Parameters

    save_completed_epochs : `bool`, optional (default = `True`)
        Saves after every epoch.
    save_every_num_seconds : `float`, optional (default = `None`)
        Also saves within epochs, at this interval.
    save_every_num_batches : `int`, optional (default = `None`)
        Also saves within epochs, at this interval, rounded up to complete optimizer steps.
    keep_most_recent_by_count : `int`, optional (default = `2`)
        Older checkpoints are deleted; `null` keeps all of them.
    keep_most_recent_by_age : `int`, optional (default = `None`)
        Deletes checkpoints older than this number of seconds, but never the newest.
    """

    serialization_dir: Path
    save_completed_epochs: bool = True
    save_every_num_seconds: float | None = None
    save_every_num_batches: int | None = None
    keep_most_recent_by_count: int | None = 2
    keep_most_recent_by_age: int | None = None

    default_implementation = "default"

    def __post_init__(self) -> None:
        self.serialization_dir = Path(self.serialization_dir)
        self.mark_saved(0)

    def is_due(self, batches_in_epoch: int) -> bool:
        """Whether a checkpoint is due after this number of batches of the epoch."""
        since = batches_in_epoch - self._last_save_batch
        batches = since if since >= 0 else batches_in_epoch  # the last one was in the epoch before
        seconds = time.monotonic() - self._last_save_time
        intervals = (self.save_every_num_batches, batches), (self.save_every_num_seconds, seconds)
        return any(interval is not None and passed >= interval for interval, passed in intervals)

    def mark_saved(self, batches_in_epoch: int) -> None:
        """Resets the intervals."""
        self._last_save_batch, self._last_save_time = batches_in_epoch, time.monotonic()

    def save(self, epochs: int, batches: int, model_state: dict[str, Any], training_state: dict[str, Any]) -> None:
        """Writes one checkpoint and deletes those that need not be kept."""
        # The training state is written last: it completes the checkpoint.
        for state, path in zip((model_state, training_state), self._paths(epochs, batches)):
            save_torch(state, path)
        *older, _ = self.checkpoints()
        for number, checkpoint in enumerate(reversed(older), start=2):
            model_path, state_path = self._paths(*checkpoint)
            too_many = self.keep_most_recent_by_count is not None and number > self.keep_most_recent_by_count
            age = time.time() - state_path.stat().st_mtime
            if too_many or (self.keep_most_recent_by_age is not None and age > self.keep_most_recent_by_age):
                state_path.unlink()
                model_path.unlink()

    def checkpoints(self) -> list[tuple[int, int]]:
        """(completed epochs, batches of the next) of all complete checkpoints, oldest first."""
        matches = (STATE_FILE.search(path.name) for path in self.serialization_dir.glob("training_state_e*.th"))
        found = [(int(match[1]), int(match[2])) for match in matches if match]
        return sorted(checkpoint for checkpoint in found if self._paths(*checkpoint)[0].exists())

    def load(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Model state and training state of the newest checkpoint, `None` if there is none."""
        checkpoints = self.checkpoints()
        # Temporary files and incomplete checkpoints of killed processes.
        folder, complete = self.serialization_dir, {self._paths(*checkpoint)[0] for checkpoint in checkpoints}
        for path in (set(folder.glob("model_state_e*_b*.th")) - complete).union(folder.glob(".*.th.*.tmp")):
            path.unlink(missing_ok=True)
        if not checkpoints:
            return None
        newest = checkpoints[-1]
        logger.info("Restoring the checkpoint after %d epochs and %d batches", *newest)
        model_state, training_state = map(load_torch, self._paths(*newest))
        return model_state, training_state

    def _paths(self, epochs: int, batches: int) -> tuple[Path, Path]:
        """The files of the model state and of the training state."""
        folder, name = self.serialization_dir, f"_e{epochs}_b{batches}.th"
        return folder / f"model_state{name}", folder / f"training_state{name}"


Checkpointer.register("default")(Checkpointer)


COUNTERS = ("metrics", "epochs_completed", "batches_in_epoch_completed", "steps_completed", "loss_sum")
PARTS = ("optimizer", "learning_rate_scheduler", "momentum_scheduler", "moving_average", "metric_tracker")


def stateful(trainer: RunningTrainer) -> dict[str, Any]:
    """The parts of a trainer with a state of their own, by its key in a checkpoint."""
    parts = {**{name: getattr(trainer, name) for name in PARTS}, "scaler": trainer.accelerator.scaler}
    return {name: part for name, part in parts.items() if part is not None}


def checkpoint_is_due(trainer: RunningTrainer) -> bool:
    """Whether the checkpointer saves within the epoch now; the same in all processes, whose clocks may differ."""
    checkpointer = trainer.checkpointer
    if checkpointer.save_every_num_batches is None and checkpointer.save_every_num_seconds is None:
        return False
    return bool(broadcast_object_list([checkpointer.is_due(trainer.batches_in_epoch_completed)])[0])


def save_checkpoint(trainer: RunningTrainer) -> None:
    """Writes weights and state; all processes must call it."""
    model_state = trainer.accelerator.get_state_dict(trainer.prepared_model)
    state = {
        "processes": gather_object([{"random": get_random_state(), "metrics": trainer.model.metric_state()}]),
        **{name: part.state_dict() for name, part in stateful(trainer).items()},
        "callbacks": [callback.state_dict() for callback in trainer.callbacks],
        "samples": trainer.units,
        "seconds": trainer.seconds,
        **{name: getattr(trainer, name) for name in COUNTERS},
    }
    trainer.checkpointer.mark_saved(trainer.batches_in_epoch_completed)
    if trainer.is_primary:
        trainer.checkpointer.save(trainer.epochs_completed, trainer.batches_in_epoch_completed, model_state, state)
    trainer.accelerator.wait_for_everyone()


def restore_checkpoint(trainer: RunningTrainer) -> None:
    """Restores the newest checkpoint, if there is one."""
    loaded = trainer.checkpointer.load()
    if loaded is None:
        if any(trainer.serialization_dir.glob("metrics_epoch_*.json")):
            logger.warning(
                "%s has finished epochs but no checkpoint: they are trained again", trainer.serialization_dir
            )
        return
    model_state, state = loaded
    processes, place = trainer.accelerator.num_processes, f"the checkpoint in {trainer.serialization_dir}"
    if len(state["processes"]) != processes:
        raise ConfigurationError(
            f"{place} was written by {len(state['processes'])} process(es) and can only be recovered by as many, "
            f"found {processes}"
        )
    if model_state.keys() != trainer.model.state_dict().keys():
        # The optimizer's state depends on the order of the parameters, which may differ between releases.
        raise ConfigurationError(
            f"{place} has other parameters than the model; allowed: to recover a run under the version of "
            "transformers that it was started with"
        )
    trainer.model.load_state_dict(model_state)
    for name, part in stateful(trainer).items():
        part.load_state_dict(state[name])
    for callback, callback_state in zip(trainer.callbacks, state["callbacks"], strict=True):
        callback.load_state_dict(callback_state)
    for name in COUNTERS:
        setattr(trainer, name, state[name])
    trainer.units = state["samples"]
    trainer.start_time -= state["seconds"]
    if trainer.steps_completed > 0:
        # The state of the last step, so that a completed run is evaluated as before.
        trainer.model.start_step(trainer.steps_completed - 1, trainer.total_steps)
    own = state["processes"][trainer.accelerator.process_index]
    if own["metrics"] is not None:
        trainer.model.load_metric_state(own["metrics"])
    elif trainer.batches_in_epoch_completed > 0:
        logger.warning(
            "%s has no metric_state: the training metrics of epoch %d cover only its remaining batches",
            type(trainer.model).__name__,
            trainer.epochs_completed,
        )
    set_random_state(own["random"])
    trainer.checkpointer.mark_saved(trainer.batches_in_epoch_completed)
