"""Curves for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.trainer import RunningTrainer


@TrainerCallback.register("tensorboard")
class TensorBoardCallback(TrainerCallback):
    """
    Writes training and validation metrics, learning rates and the gradient norm to `log/train` and `log/validation`.

    Registered as a `TrainerCallback` with name "tensorboard". Needs the package `tensorboard`.

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
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigurationError(
                'trainer.callbacks: "tensorboard" needs the package tensorboard: pip install tensorboard'
            ) from error
        self._writer_class: Any = SummaryWriter
        self._writers: dict[str, Any] = {}
        self.summary_interval = summary_interval
        self.should_log_learning_rate = should_log_learning_rate

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
        self._add("train", values, step)

    def on_epoch(
        self, trainer: RunningTrainer, metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
    ) -> None:
        for folder, prefix in (("train", "training_"), ("validation", "validation_")) if is_primary else ():
            found = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
            self._add(folder, {f"epoch/{name}": value for name, value in found.items()}, epoch)

    def on_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        for writer in self._writers.values():
            writer.close()

    def _add(self, folder: str, values: dict[str, Any], step: int) -> None:
        if folder not in self._writers:
            self._writers[folder] = self._writer_class(str(self.serialization_dir / "log" / folder))
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writers[folder].add_scalar(name, value, step)
