"""The curves of a training, for callbacks that write them."""

import importlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.trainer import RunningTrainer


@dataclass(eq=False)
class LogWriter(TrainerCallback):
    """
    Training and validation metrics, learning rates and the gradient norm; what happens to them is a subclass's `write`.

    # Parameters

    summary_interval : `int`, optional (default = `100`)
        Optimizer steps between two points of the training curves.
    should_log_learning_rate : `bool`, optional (default = `True`)
        Also logs the learning rate of every parameter group.
    should_log_parameter_statistics : `bool`, optional (default = `False`)
        Also logs mean and standard deviation of each parameter and of its gradient.
    distribution_interval : `int`, optional (default = `None`, none)
        Optimizer steps between two histograms of each parameter, in TensorBoard and Weights & Biases.
    batch_size_interval : `int`, optional (default = `None`, none)
        Optimizer steps between two points of `batch_size`, the samples of a step in this process, and
        `mean_batch_size`, the mean over the epoch so far.
    batch_loss_moving_average_count : `int`, optional (default = `100`)
        Over how many optimizer steps `batch_loss_mov_avg` is the mean of the loss.
    """

    serialization_dir: Path
    summary_interval: int = 100
    should_log_learning_rate: bool = True
    should_log_parameter_statistics: bool = False
    distribution_interval: int | None = None
    batch_size_interval: int | None = None
    batch_loss_moving_average_count: int = 100
    package: ClassVar[str]
    module: ClassVar[str]
    """What of the package is imported, as `service`."""

    def __post_init__(self) -> None:
        super().__init__(self.serialization_dir)
        try:
            self.service: Any = importlib.import_module(self.module)
        except ImportError as error:
            message = (
                f'trainer.callbacks: "{self.package}" needs the package {self.package}: pip install {self.package}'
            )
            raise ConfigurationError(message) from error
        if self.distribution_interval and type(self).write_histograms is LogWriter.write_histograms:
            raise ConfigurationError(
                f"distribution_interval: found {self.distribution_interval}, allowed: null (no histograms)"
            )

        self._losses: deque[float] = deque(maxlen=self.batch_loss_moving_average_count)
        self._samples: list[int] = []  # of each step of the epoch

    def write(self, split: str, values: dict[str, float], step: int, epoch: int | None) -> None:
        """Takes numbers of "train" or "validation", after optimizer step `step`; of a whole epoch, `epoch` is given."""
        raise NotImplementedError(f"{type(self).__name__} does not define write")

    def write_histograms(self, values: dict[str, Tensor], step: int) -> None:
        """Takes the parameters after optimizer step `step`."""
        raise NotImplementedError(f"{type(self).__name__} does not define write_histograms")

    def on_batch(
        self,
        trainer: RunningTrainer,
        batch_inputs: Sequence[Mapping[str, Tensor]],
        batch_metrics: dict[str, Any],
        is_primary: bool = True,
        batch_grad_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        self._losses.append(batch_metrics["batch_loss"])
        self._samples.append(sum(len(batch["index"]) for batch in batch_inputs))
        if not is_primary:
            return
        step = trainer.steps_completed
        if self.distribution_interval and step % self.distribution_interval == 0:
            found = trainer.model.named_parameters()
            self.write_histograms(
                {f"parameter_histograms/{name}": one.detach().float().cpu() for name, one in found}, step
            )
        if self.batch_size_interval and step % self.batch_size_interval == 0:
            sizes = {"batch_size": self._samples[-1], "mean_batch_size": fmean(self._samples)}
            self.write("train", sizes, step, None)
        if step % self.summary_interval != 0:
            return
        values = {**batch_metrics, "batch_loss_mov_avg": fmean(self._losses), "gradient_norm": batch_grad_norm}
        if self.should_log_learning_rate:
            values.update({f"learning_rate/group_{n}": g["lr"] for n, g in enumerate(trainer.optimizer.param_groups)})
        if self.should_log_parameter_statistics:
            values.update(parameter_statistics(trainer.model))
        self.write("train", numbers(values), step, None)

    def on_epoch(
        self, trainer: RunningTrainer, metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
    ) -> None:
        self._samples.clear()
        for split, prefix in (("train", "training_"), ("validation", "validation_")) if is_primary else ():
            found = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
            values = {f"epoch/{name}": value for name, value in numbers(found).items()}
            self.write(split, values, trainer.steps_completed, epoch)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def parameter_statistics(model: torch.nn.Module) -> dict[str, float]:
    """Under AllenNLP's names."""
    found = {}
    for name, parameter in model.named_parameters():
        for kind, values in (("parameter", parameter), ("gradient", parameter.grad)):
            if values is not None and values.numel() > 1:
                found[f"{kind}_mean/{name}"], found[f"{kind}_std/{name}"] = values.mean().item(), values.std().item()
    return found
