"""The base class of trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from beem_plugin.common.errors import BeemError
from beem_plugin.common.registry import Registrable
from beem_plugin.training.training_data import TrainingData


class TrainingError(BeemError):
    """Training cannot go on: the loss is no number any more."""


class Trainer(Registrable):
    """
    Trains a model that it was given, and leaves it with its best weights.

    # Parameters

    serialization_dir : `str | Path`
        Where checkpoints, the best weights and the metrics of every epoch are written.
    """

    default_implementation = "gradient_descent"

    data: TrainingData
    """Set by `TrainModel` right after construction."""

    def __init__(self, serialization_dir: str | Path) -> None:
        self.serialization_dir = Path(serialization_dir)
        self.final_metrics: dict[str, Any] | None = None
        """Set once at least one epoch is done, the best weights are loaded and the callbacks' `on_end` has run: then
        there is something worth keeping even if `train` goes on to raise."""

    def train(self) -> dict[str, Any]:
        """Trains to the end and returns the metrics; goes on from the newest checkpoint where there is one."""
        raise TypeError(f"{type(self).__name__} does not define train")

    def evaluate(self, data_loader: Any, description: str = "evaluation") -> dict[str, float]:
        """The metrics of the model as it is now."""
        raise TypeError(f"{type(self).__name__} does not define evaluate")
