"""What can be hung into training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from beem_plugin.common.registry import Registrable
from beem_plugin.training.running_trainer import RunningTrainer


class TrainerCallback(Registrable):
    """
    Called by the trainer at fixed moments, in every process; `is_primary` is true in the one that writes files.

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
        When the trainer is built, of a staged training before its first stage: raises a `ConfigurationError` if the
        callback cannot serve `model`.
        """

    def training_data(self, data_loader: Any) -> Any:
        """
        Before there is a trainer: the loader of the data that the model shall be trained on, `data_loader` itself or
        one over fewer of its rows.
        """
        return data_loader

    def on_start(self, trainer: RunningTrainer, is_primary: bool = True, **kwargs: Any) -> None:
        """Before the first epoch, or the first after a recovery."""
        self.trainer = trainer

    def on_backward(
        self, trainer: RunningTrainer, batch_outputs: dict[str, Tensor], backward_called: bool, **kwargs: Any
    ) -> bool:
        """Before the backward pass; returns whether this callback did the backward pass itself."""
        return False

    def on_batch(
        self,
        trainer: RunningTrainer,
        batch_inputs: list[dict[str, Tensor]],
        batch_outputs: list[dict[str, Any]],
        batch_metrics: dict[str, Any],
        epoch: int,
        batch_number: int,
        is_training: bool,
        is_primary: bool = True,
        batch_grad_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        """After every optimizer step, with all batches that were accumulated for it."""

    def on_epoch(
        self,
        trainer: RunningTrainer,
        metrics: dict[str, Any],
        epoch: int,
        is_primary: bool = True,
        **kwargs: Any,
    ) -> None:
        """After every epoch, with what `metrics_epoch_{epoch}.json` says."""

    def on_end(
        self,
        trainer: RunningTrainer,
        metrics: dict[str, Any] | None = None,
        epoch: int | None = None,
        is_primary: bool = True,
        **kwargs: Any,
    ) -> None:
        """
        After training, also one that failed or was interrupted after an epoch: the model has its best weights, and what
        is added to `metrics` comes into metrics.json.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep: numbers, strings, tensors, and lists and dictionaries of them."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""


TrainerCallback.register("null")(TrainerCallback)
