"""The best epoch by a validation metric, and early stopping."""

import math
from typing import Any

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number


class MetricTracker:
    """
    `validation_metric` is a metric's name after "+" (higher is better) or "-" (lower is better); several are summed
    with these signs. Training stops after `patience` epochs without improvement.
    """

    def __init__(self, validation_metric: str | list[str] = "-loss", patience: int | None = None) -> None:
        if patience is not None:
            check_number("trainer.patience", patience, low=1)
        self.patience = patience
        self.signed_names: list[tuple[float, str]] = []
        names = [validation_metric] if isinstance(validation_metric, str) else list(validation_metric)
        for name in names:
            if name[:1] not in ("+", "-") or len(name) < 2:
                raise ConfigurationError(
                    f'trainer.validation_metric: found {name!r}, allowed: a metric after "+" or "-", like "+accuracy"'
                )
            self.signed_names.append((1.0 if name[0] == "+" else -1.0, name[1:]))
        if not self.signed_names:
            raise ConfigurationError("trainer.validation_metric: found an empty list, allowed: at least one metric")
        self.best_score = -math.inf
        self.best_epoch: int | None = None
        self.best_epoch_metrics: dict[str, float] = {}
        self.epoch_number = 0
        self.epochs_with_no_improvement = 0
        self.is_best_so_far = False

    def combined_score(self, metrics: dict[str, float]) -> float:
        """The signed sum; an unknown metric's name is an error that lists the known ones."""
        for _, name in self.signed_names:
            check_choice("trainer.validation_metric", name, metrics)
        return sum(sign * metrics[name] for sign, name in self.signed_names)

    def add_metrics(self, metrics: dict[str, float]) -> None:
        """
        Adds an epoch. Of equal scores the last one is the best, since its early exits, which the score may not see, are
        trained further; it is no improvement. NaN is never the best, unless it is the first.
        """
        score = self.combined_score(metrics)
        is_better = score > self.best_score or self.best_epoch is None
        self.is_best_so_far = is_better or score == self.best_score
        if self.is_best_so_far:
            self.best_score = -math.inf if math.isnan(score) else score
            self.best_epoch = self.epoch_number
            self.best_epoch_metrics = dict(metrics)
        self.epochs_with_no_improvement = 0 if is_better else self.epochs_with_no_improvement + 1
        self.epoch_number += 1

    def add_unmeasured_epoch(self) -> None:
        """Adds an epoch without validation data, which counts as the best."""
        self.is_best_so_far = True
        self.best_epoch = self.epoch_number
        self.epoch_number += 1

    def should_stop_early(self) -> bool:
        return self.patience is not None and self.epochs_with_no_improvement >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("patience", "signed_names")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
