"""Sets the model's epoch."""

from typing import Any

from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.trainer import RunningTrainer


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
