"""What callbacks and checkpoints read of a running trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from beem_plugin.training.training_data import TrainingData


class RunningTrainer(Protocol):
    """The attributes of `TrainingLoop` that callbacks may use; see there. Counts are those of the present training."""

    accelerator: Any
    model: Any
    optimizer: Any
    learning_rate_scheduler: Any
    callbacks: Any
    data: TrainingData
    serialization_dir: Path
    metric_tracker: Any
    metrics: dict[str, Any]
    epochs_completed: int
    batches_in_epoch_completed: int
    steps_completed: int
    loss_sum: float
    units: int
    start_time: float

    @property
    def total_steps(self) -> int: ...

    @property
    def seconds(self) -> float: ...
