"""The base classes of trainers, and the state of a training that callbacks and checkpoints use."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from beem_plugin.common.errors import BeemError
from beem_plugin.common.registry import Registrable
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance


class TrainingError(BeemError):
    """Training cannot continue: the loss is not finite, or a stage misses its requirement."""


@dataclass
class TrainingData:
    """The data of a run, for callbacks, by split: "train", "validation", "test", of several test sets "test_<name>"."""

    dataset_reader: DatasetReader
    paths: dict[str, str]
    instances: dict[str, Sequence[Instance]]
    pad_token_id: int
    policy_config: dict[str, Any]  # the block `model.exit_policy` of the config


class Trainer(Registrable):
    """
    Trains a given model and leaves it with its best weights. `serialization_dir` is the folder for checkpoints, the
    best weights and the metrics of every epoch.
    """

    default_implementation = "gradient_descent"

    data: TrainingData
    """Set by `TrainModel` right after construction."""

    def __init__(self, serialization_dir: str | Path) -> None:
        self.serialization_dir = Path(serialization_dir)
        self.final_metrics: dict[str, Any] | None = None
        """Set when at least one epoch is complete and the best weights are loaded, even if `train` then raises."""

    def check(self) -> None:
        """Raises an error that would end the training before its first step, while a former run can be restored."""

    def train(self) -> dict[str, Any]:
        """Trains from the newest checkpoint, if any, to the end; returns the metrics."""
        raise NotImplementedError

    def evaluate(self, data_loader: Any, description: str = "evaluation") -> dict[str, float]:
        """The metrics of the model with its present weights."""
        raise NotImplementedError


class RunningTrainer(Trainer):
    """The state of a training by gradient descent, for callbacks and checkpoints."""

    accelerator: Accelerator
    model: Any
    optimizer: torch.optim.Optimizer
    prepared_model: torch.nn.Module
    """The accelerator's wrapper of the model; `prepared_optimizer` that of the optimizer."""
    prepared_optimizer: Any
    learning_rate_scheduler: Any
    momentum_scheduler: Any
    moving_average: Any
    data_loader: Any
    validation_data_loader: Any
    checkpointer: Any
    callbacks: Sequence[Any]
    metric_tracker: Any
    num_epochs: int
    num_gradient_accumulation_steps: int
    grad_norm: float | bool | None
    grad_clipping: float | None
    steps_per_epoch: int

    def __init__(self, serialization_dir: str | Path) -> None:
        super().__init__(serialization_dir)
        self.metrics: dict[str, Any] = {}
        self.epochs_completed = 0
        self.batches_in_epoch_completed = 0
        self.steps_completed = 0
        self.loss_sum = 0.0
        self.units = 0
        """Sum of the losses of the epoch's batches times their units, and number of units (`Model.loss_units`)."""
        self.start_time = time.monotonic()

    def complete_epoch(self) -> None:
        self.epochs_completed += 1
        self.batches_in_epoch_completed, self.loss_sum, self.units = 0, 0.0, 0

    @property
    def is_primary(self) -> bool:
        """Whether this process writes files."""
        return self.accelerator.is_main_process

    @property
    def schedulers(self) -> list[Any]:
        return [each for each in (self.learning_rate_scheduler, self.momentum_scheduler) if each is not None]

    @property
    def total_steps(self) -> int:
        """Optimizer steps in `num_epochs` epochs."""
        return self.steps_per_epoch * self.num_epochs

    @property
    def seconds(self) -> float:
        """Duration of the training, including the time before a recovery."""
        return time.monotonic() - self.start_time


def test_paths(test_data_path: str | dict[str, str] | None) -> dict[str, str]:
    """The sources of test data by split."""
    if isinstance(test_data_path, dict):
        return {f"test_{name}": path for name, path in test_data_path.items()}
    return {} if test_data_path is None else {"test": test_data_path}


def with_means(metrics: Mapping[str, Mapping[str, Any]], prefix: str = "") -> dict[str, Any]:
    """The numbers of each test split as `<split>_<prefix><name>`; of several splits also their means, as `test_...`."""
    found = {f"{split}_{prefix}{name}": value for split, values in metrics.items() for name, value in values.items()}
    if len(metrics) > 1:
        first, *others = metrics.values()
        for name, value in first.items():
            if isinstance(value, float) and all(name in other for other in others):
                found[f"test_{prefix}{name}"] = sum(values[name] for values in metrics.values()) / len(metrics)
    return found
