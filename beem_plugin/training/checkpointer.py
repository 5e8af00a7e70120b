"""Checkpoints, from which an interrupted run continues with the results of an uninterrupted one."""

import logging
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from beem_plugin.common.files import atomic_write
from beem_plugin.common.registry import Registrable

logger = logging.getLogger(__name__)

STATE_FILE = re.compile(r"training_state_e(\d+)_b(\d+)\.th$")


def save_torch(obj: Any, path: Path) -> None:
    """`torch.save` under a temporary name, so that a killed process never leaves a partial file."""
    with atomic_write(path, "wb") as file:
        torch.save(obj, file)


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
        self._last_save_batch = 0
        self._last_save_time = time.monotonic()

    @property
    def saves_within_epochs(self) -> bool:
        return self.save_every_num_batches is not None or self.save_every_num_seconds is not None

    def is_due(self, batches_in_epoch: int) -> bool:
        """Whether a checkpoint is due after this number of batches of the epoch."""
        if batches_in_epoch < self._last_save_batch:
            self._last_save_batch = 0
        batches, seconds = self.save_every_num_batches, self.save_every_num_seconds
        return (batches is not None and batches_in_epoch - self._last_save_batch >= batches) or (
            seconds is not None and time.monotonic() - self._last_save_time >= seconds
        )

    def mark_saved(self, batches_in_epoch: int) -> None:
        """Resets the intervals."""
        self._last_save_time = time.monotonic()
        self._last_save_batch = batches_in_epoch

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
