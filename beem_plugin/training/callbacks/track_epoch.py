"""Tells the model which epoch it is in."""

from __future__ import annotations

from typing import Any

from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.running_trainer import RunningTrainer


@TrainerCallback.register("track_epoch_callback")
class TrackEpochCallback(TrainerCallback):
    """
    Sets `model.epoch` to the number of completed epochs, for models whose loss changes with time.

    Registered as a `TrainerCallback` with name "track_epoch_callback".
    """

    def on_start(self, trainer: RunningTrainer, is_primary: bool = True, **kwargs: Any) -> None:
        super().on_start(trainer, is_primary)
        setattr(trainer.model, "epoch", trainer.epochs_completed)  # noqa: B010

    def on_epoch(
        self,
        trainer: RunningTrainer,
        metrics: dict[str, Any],
        epoch: int,
        is_primary: bool = True,
        **kwargs: Any,
    ) -> None:
        setattr(trainer.model, "epoch", epoch + 1)  # noqa: B010
