"""Metrics of steps and epochs for a program that draws them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.trainer import RunningTrainer


class LogWriter(TrainerCallback):
    """
    Training and validation metrics, learning rates and the gradient norm; what happens to them is a subclass's `write`.

    # Parameters

    summary_interval : `int`, optional (default = `100`)
        Optimizer steps between two points of the training curves.
    should_log_learning_rate : `bool`, optional (default = `True`)
        Also logs the learning rate of every parameter group.
    """

    def __init__(
        self, serialization_dir: str | Path, summary_interval: int = 100, should_log_learning_rate: bool = True
    ) -> None:
        super().__init__(serialization_dir)
        self.summary_interval = summary_interval
        self.should_log_learning_rate = should_log_learning_rate

    def write(self, split: str, values: dict[str, float], step: int, epoch: int | None) -> None:
        """Takes numbers of "train" or "validation", after optimizer step `step`; of a whole epoch, `epoch` is given."""
        raise NotImplementedError

    def on_batch(
        self,
        trainer: RunningTrainer,
        batch_metrics: dict[str, Any],
        is_primary: bool = True,
        batch_grad_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        step = trainer.steps_completed
        if not is_primary or step % self.summary_interval != 0:
            return
        values = {**batch_metrics, "gradient_norm": batch_grad_norm}
        if self.should_log_learning_rate:
            values.update({f"learning_rate/group_{n}": g["lr"] for n, g in enumerate(trainer.optimizer.param_groups)})
        self.write("train", numbers(values), step, None)

    def on_epoch(
        self, trainer: RunningTrainer, metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
    ) -> None:
        for split, prefix in (("train", "training_"), ("validation", "validation_")) if is_primary else ():
            found = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
            values = {f"epoch/{name}": value for name, value in numbers(found).items()}
            self.write(split, values, trainer.steps_completed, epoch)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}
