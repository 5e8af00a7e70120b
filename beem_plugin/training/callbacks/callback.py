"""The base class of callbacks, and two small ones."""

import logging
from pathlib import Path
from typing import Any

from beem_plugin.common.registry import Registrable
from beem_plugin.training.trainer import RunningTrainer

logger = logging.getLogger(__name__)


class TrainerCallback(Registrable):
    """
    Called by the trainer in every process. All arguments but `trainer` are passed by name, among them `is_primary`,
    which is true in the process that writes files. An implementation names those it needs, and ends with `**kwargs`.

    Registered as a `TrainerCallback` with name "null", which does nothing.

    # Parameters

    serialization_dir : `str | Path`
        Given by the trainer.
    """

    def __init__(self, serialization_dir: str | Path) -> None:
        self.serialization_dir = Path(serialization_dir)
        self.trainer: RunningTrainer | None = None

    def check_model(self, model: Any) -> None:
        """
        Called when the trainer is built, of a staged training before its first stage. Raises a `ConfigurationError` if
        the callback does not support `model`.
        """

    def training_data(self, data_loader: Any) -> Any:
        """Called before the trainer is complete: the training loader, or one over fewer of its rows."""
        return data_loader

    def on_start(self, trainer: RunningTrainer, *args: Any, **kwargs: Any) -> None:
        """Before the first epoch, or the first after a recovery. `is_primary`."""
        self.trainer = trainer

    def on_backward(self, trainer: RunningTrainer, *args: Any, **kwargs: Any) -> bool:
        """
        Before each backward pass. `batch_outputs`: the model's; `backward_called`: whether another callback ran it.
        Returns whether this callback ran the backward pass.
        """
        return False

    def on_batch(self, trainer: RunningTrainer, *args: Any, **kwargs: Any) -> None:
        """
        After every optimizer step. `batch_inputs`, `batch_outputs`: lists over the accumulated batches;
        `batch_metrics`: running metrics; `epoch`, `batch_number`; `is_training`: true; `batch_grad_norm`: `None` unless
        the trainer's `grad_norm` is set; `is_primary`.
        """

    def on_epoch(self, trainer: RunningTrainer, *args: Any, **kwargs: Any) -> None:
        """After every epoch. `metrics`: the content of `metrics_epoch_{epoch}.json`; `epoch`; `is_primary`."""

    def on_end(self, trainer: RunningTrainer, *args: Any, **kwargs: Any) -> None:
        """
        After training, also when it failed or was interrupted after an epoch; the model has its best weights.
        `metrics`: entries that are added appear in metrics.json; `epoch`: the last one; `is_primary`.
        """

    def state_dict(self) -> dict[str, Any]:
        """The state for checkpoints: numbers, strings, tensors, and lists and dictionaries of them."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""


TrainerCallback.register("null")(TrainerCallback)


@TrainerCallback.register("track_epoch_callback")
class TrackEpochCallback(TrainerCallback):
    """
    Sets `model.epoch` to the number of completed epochs, for models whose loss depends on it.

    Registered as a `TrainerCallback` with name "track_epoch_callback".
    """

    def on_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        super().on_start(trainer)
        trainer.model.epoch = trainer.epochs_completed

    def on_epoch(self, trainer: RunningTrainer, epoch: int, **kwargs: Any) -> None:
        trainer.model.epoch = epoch + 1


SPLITS = ("training", "validation")


@TrainerCallback.register("console_logger")
class ConsoleLoggerCallback(TrainerCallback):
    """
    Logs training and validation metrics side by side after every epoch.

    Registered as a `TrainerCallback` with name "console_logger"; one of the default callbacks.
    """

    def on_epoch(
        self, trainer: RunningTrainer, metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
    ) -> None:
        rows: dict[str, dict[str, str]] = {}
        for key, value in metrics.items():
            split, _, name = key.partition("_")
            if split in SPLITS and isinstance(value, int | float):
                rows.setdefault(name, {})[split] = f"{value:.4f}"
        if not is_primary or not rows:
            return
        width = max(map(len, rows))
        lines = [f"epoch {epoch}", f"{'':{width}} | {'training':>10} | {'validation':>10}"]
        for name, cells in sorted(rows.items()):
            lines.append(f"{name:{width}} | " + " | ".join(f"{cells.get(split, 'N/A'):>10}" for split in SPLITS))
        logger.info("\n".join(lines))
