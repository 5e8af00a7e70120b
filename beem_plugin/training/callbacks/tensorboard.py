"""Curves for TensorBoard."""

from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.callbacks.log_writer import LogWriter
from beem_plugin.training.trainer import RunningTrainer


@TrainerCallback.register("tensorboard")
class TensorBoardCallback(LogWriter):
    """
    Writes training and validation metrics, learning rates and the gradient norm to `log/train` and `log/validation`.

    Registered as a `TrainerCallback` with name "tensorboard". Needs the package `tensorboard`. The keys are those of
    `LogWriter`.
    """

    def __init__(
        self, serialization_dir: str | Path, summary_interval: int = 100, should_log_learning_rate: bool = True
    ) -> None:
        super().__init__(serialization_dir, summary_interval, should_log_learning_rate)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigurationError(
                'trainer.callbacks: "tensorboard" needs the package tensorboard: pip install tensorboard'
            ) from error
        self._writer_class: Any = SummaryWriter
        self._writers: dict[str, Any] = {}

    def write(self, split: str, values: dict[str, float], step: int, epoch: int | None) -> None:
        if split not in self._writers:
            self._writers[split] = self._writer_class(str(self.serialization_dir / "log" / split))
        for name, value in values.items():
            self._writers[split].add_scalar(name, value, step if epoch is None else epoch)

    def on_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        for writer in self._writers.values():
            writer.close()
