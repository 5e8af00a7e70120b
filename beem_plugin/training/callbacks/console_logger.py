"""A table of the metrics in the log after every epoch."""

from __future__ import annotations

import logging
from typing import Any

from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.running_trainer import RunningTrainer

logger = logging.getLogger(__name__)


@TrainerCallback.register("console_logger")
class ConsoleLoggerCallback(TrainerCallback):
    """
    Logs training and validation metrics side by side after every epoch.

    Registered as a `TrainerCallback` with name "console_logger"; one of the default callbacks.
    """

    def on_epoch(
        self,
        trainer: RunningTrainer,
        metrics: dict[str, Any],
        epoch: int,
        is_primary: bool = True,
        **kwargs: Any,
    ) -> None:
        if not is_primary:
            return
        names = sorted(
            {
                name.removeprefix(prefix)
                for prefix in ("training_", "validation_")
                for name, value in metrics.items()
                if name.startswith(prefix) and isinstance(value, int | float)
            }
        )
        if not names:
            return
        width = max(len(name) for name in names)
        lines = [f"epoch {epoch}", f"{'':{width}} | {'training':>10} | {'validation':>10}"]
        for name in names:
            cells = [_cell(metrics.get(prefix + name)) for prefix in ("training_", "validation_")]
            lines.append(f"{name:{width}} | {cells[0]:>10} | {cells[1]:>10}")
        logger.info("\n".join(lines))


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "N/A"
