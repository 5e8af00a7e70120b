"""Schedules of an optimizer's momentum."""

import math
from typing import Any

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.learning_rate_schedulers import Curve, CurveScheduler, schedule


class MomentumScheduler(CurveScheduler):
    """Sets the momentum of an optimizer's groups: `momentum` of SGD and RMSprop, the first of Adam's `betas`."""

    def value_of(self, group: dict[str, Any]) -> float:
        if "momentum" not in group and "betas" not in group:
            raise ConfigurationError("the optimizer has no momentum; allowed: sgd, rmsprop, adam")
        return float(group["momentum"] if "momentum" in group else group["betas"][0])

    def set_value(self, group: dict[str, Any], value: float) -> None:
        if "momentum" in group:
            group["momentum"] = value
        else:
            group["betas"] = (value, *group["betas"][1:])


@schedule(
    "inverted_triangular",
    {"cool_down": "Epochs in which the momentum falls.", "warm_up": "Epochs in which it rises again."},
    unit="epochs",
    kind=MomentumScheduler,
)
def inverted_triangular(total_steps: int, cool_down: int, warm_up: int, ratio: int = 10) -> Curve:
    """A linear fall to 1 / ratio of the optimizer's momentum and a linear rise back, stepped once an epoch."""

    def triangle(base: float, epoch: int) -> float:
        if epoch <= cool_down:
            return base - (base - base / ratio) * epoch / max(1, cool_down)
        return base / ratio + (base - base / ratio) * min(1.0, (epoch - cool_down) / max(1, warm_up))

    return triangle


@schedule("one_cycle", {"pct_start": "The share of all steps in which the momentum falls."}, kind=MomentumScheduler)
def one_cycle(
    total_steps: int, base_momentum: float = 0.85, max_momentum: float = 0.95, pct_start: float = 0.3
) -> Curve:
    """A cosine from `max_momentum` to `base_momentum` and back, as torch's `OneCycleLR` does beside its rates."""
    lowest = pct_start * total_steps - 1

    def cycle(base: float, step: int) -> float:
        done = max(0, step - 1)
        part = done / lowest if done <= lowest else (total_steps - 1 - done) / max(1.0, total_steps - 1 - lowest)
        return max_momentum + (base_momentum - max_momentum) * (1 - math.cos(math.pi * max(0.0, part))) / 2

    return cycle
