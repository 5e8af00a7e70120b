"""Checkpoints: what a run needs to go on as if it had never been interrupted."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import Any

import torch

from beem_plugin.common.files import atomic_write
from beem_plugin.common.registry import Registrable

logger = logging.getLogger(__name__)

STATE_FILE = re.compile(r"training_state_e(\d+)_b(\d+)\.th$")

BEST_WEIGHTS = "best.th"


def save_torch(obj: Any, path: Path) -> None:
    """`torch.save` under a temporary name, so that a kill while writing never leaves half a file."""
    with atomic_write(path, "wb") as file:
        torch.save(obj, file)


def load_torch(path: Path) -> Any:
    """`torch.load` to the CPU that runs no code from the file."""
    return torch.load(path, map_location="cpu", weights_only=True)


class Checkpointer(Registrable):
    """
    Writes `model_state_e{E}_b{B}.th` and `training_state_e{E}_b{B}.th`, E completed epochs and B batches of the next.

    Registered as a `Checkpointer` with name "default".

    # Parameters

    save_completed_epochs : `bool`, optional (default = `True`)
        Saves after every epoch.
    save_every_num_seconds : `float`, optional (default = `None`)
        Also saves within epochs, when so much time has passed.
    save_every_num_batches : `int`, optional (default = `None`)
        Also saves within epochs, after so many batches. Checkpoints fall on ends of accumulation windows.
    keep_most_recent_by_count : `int`, optional (default = `2`)
        Older checkpoints are deleted; `null` keeps all of them.
    keep_most_recent_by_age : `int`, optional (default = `None`)
        Deletes checkpoints that are older than so many seconds, but never the newest.
    """

    default_implementation = "default"

    def __init__(
        self,
        serialization_dir: str | Path,
        save_completed_epochs: bool = True,
        save_every_num_seconds: float | None = None,
        save_every_num_batches: int | None = None,
        keep_most_recent_by_count: int | None = 2,
        keep_most_recent_by_age: int | None = None,
    ) -> None:
        self.serialization_dir = Path(serialization_dir)
        self.save_completed_epochs = save_completed_epochs
        self.save_every_num_seconds = save_every_num_seconds
        self.save_every_num_batches = save_every_num_batches
        self.keep_most_recent_by_count = keep_most_recent_by_count
        self.keep_most_recent_by_age = keep_most_recent_by_age
        self._last_save_time = time.monotonic()
        self._last_save_batch = 0

    @property
    def saves_within_epochs(self) -> bool:
        return self.save_every_num_batches is not None or self.save_every_num_seconds is not None

    def is_due(self, batches_in_epoch: int) -> bool:
        """Whether a checkpoint within the epoch is due after so many of its batches."""
        if batches_in_epoch < self._last_save_batch:
            self._last_save_batch = 0
        since_save = batches_in_epoch - self._last_save_batch
        if self.save_every_num_batches is not None and since_save >= self.save_every_num_batches:
            return True
        if self.save_every_num_seconds is not None:
            return time.monotonic() - self._last_save_time >= self.save_every_num_seconds
        return False

    def mark_saved(self, batches_in_epoch: int) -> None:
        """Starts counting anew."""
        self._last_save_time = time.monotonic()
        self._last_save_batch = batches_in_epoch

    def save(self, epochs: int, batches: int, model_state: dict[str, Any], training_state: dict[str, Any]) -> None:
        """Writes one checkpoint and deletes those that need not be kept."""
        # The training state comes last: it is what makes the pair a checkpoint.
        save_torch(model_state, self._model_path(epochs, batches))
        save_torch(training_state, self._state_path(epochs, batches))
        self._prune()

    def checkpoints(self) -> list[tuple[int, int]]:
        """(completed epochs, batches of the next) of all complete checkpoints, oldest first."""
        found = []
        for path in self.serialization_dir.glob("training_state_e*_b*.th"):
            match = STATE_FILE.search(path.name)
            if match and self._model_path(int(match[1]), int(match[2])).exists():
                found.append((int(match[1]), int(match[2])))
        return sorted(found)

    def load(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Model state and training state of the newest checkpoint, `None` where there is none."""
        checkpoints = self.checkpoints()
        self._remove_leftovers(checkpoints)
        if not checkpoints:
            return None
        newest = checkpoints[-1]
        logger.info("Restoring the checkpoint after %d epochs and %d batches", *newest)
        return load_torch(self._model_path(*newest)), load_torch(self._state_path(*newest))

    def _model_path(self, epochs: int, batches: int) -> Path:
        return self.serialization_dir / f"model_state_e{epochs}_b{batches}.th"

    def _state_path(self, epochs: int, batches: int) -> Path:
        return self.serialization_dir / f"training_state_e{epochs}_b{batches}.th"

    def _remove_leftovers(self, checkpoints: list[tuple[int, int]]) -> None:
        """What a process that was killed while writing or deleting has left: temporary files, half of a checkpoint."""
        complete = {self._model_path(*checkpoint) for checkpoint in checkpoints}
        leftovers = set(self.serialization_dir.glob("model_state_e*_b*.th")) - complete
        for path in leftovers.union(self.serialization_dir.glob(".*.th.*.tmp")):
            path.unlink(missing_ok=True)

    def _prune(self) -> None:
        *older, _ = self.checkpoints()
        now = time.time()
        for number, checkpoint in enumerate(reversed(older), start=2):
            state_path = self._state_path(*checkpoint)
            too_many = self.keep_most_recent_by_count is not None and number > self.keep_most_recent_by_count
            age = now - state_path.stat().st_mtime
            if too_many or (self.keep_most_recent_by_age is not None and age > self.keep_most_recent_by_age):
                state_path.unlink()
                self._model_path(*checkpoint).unlink()


Checkpointer.register("default")(Checkpointer)
