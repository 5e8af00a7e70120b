"""A table of the metrics in the log after every epoch."""

import logging
from typing import Any

from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.trainer import RunningTrainer

logger = logging.getLogger(__name__)

SPLITS = ("training", "validation")


@TrainerCallback.register("console_logger")
class ConsoleLoggerCallback(TrainerCallback):
    """
    Logs training and validation metrics side by side after every epoch.

    Registered as a `TrainerCallback` with name "console_logger"; one of the default callbacks.
    """

    def on_epoch(
        self, trainer: RunningTrainer, metrics: dict[str, Any], epoch: int, is_primary: bool = True, **kwargs: Any
    ) -> None:
        rows: dict[str, dict[str, str]] = {}
        for key, value in metrics.items():
            split, _, name = key.partition("_")
            if split in SPLITS and isinstance(value, int | float):
                rows.setdefault(name, {})[split] = f"{value:.4f}"
        if not is_primary or not rows:
            return
        width = max(map(len, rows))
        lines = [f"epoch {epoch}", f"{'':{width}} | {'training':>10} | {'validation':>10}"]
        for name, cells in sorted(rows.items()):
            lines.append(f"{name:{width}} | " + " | ".join(f"{cells.get(split, 'N/A'):>10}" for split in SPLITS))
        logger.info("\n".join(lines))
