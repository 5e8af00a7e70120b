"""Learning rates and momenta as functions of the step, under AllenNLP's names."""

import logging
import math
from collections.abc import Callable
from typing import Any

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.recipes import with_keys_of
from beem_plugin.training.learning_rate_schedulers import Curve, CurveScheduler, schedule

logger = logging.getLogger(__name__)

Decay = Callable[[float, float], float]
"""The learning rate for a base rate and the progress from 0, after warm-up, to 1, at the end."""
WARMUP = {
    "warmup_steps": "Optimizer steps, or a fraction below 1 of all of them.",
    "num_warmup_steps": "AllenNLP's name for `warmup_steps`; takes precedence.",
    "num_training_steps": "The end of the curve; by default the last step of training.",
}


def after_warmup(
    name: str, default_steps: int = 100, **meanings: str
) -> Callable[[Callable[..., Decay]], Callable[..., Decay]]:
    """Registers a schedule that rises linearly from 0 in `warmup_steps`, and then follows the function's decay."""

    def register(function: Callable[..., Decay]) -> Callable[..., Decay]:
        def make(
            total_steps: int,
            warmup_steps: int | float = default_steps,
            num_warmup_steps: int | float | None = None,
            num_training_steps: int | None = None,
            **options: Any,
        ) -> Curve:
            given = warmup_steps if num_warmup_steps is None else num_warmup_steps
            if given < 0 or (given >= 1 and given != int(given)):
                raise ConfigurationError(
                    f"learning_rate_scheduler.warmup_steps: found {given!r}, allowed: a number of steps, or a fraction "
                    "of all steps between 0 and 1"
                )
            end = total_steps if num_training_steps is None else num_training_steps
            warmup = math.ceil(given * total_steps) if 0 < given < 1 else int(given)
            decay = function(**options)

            def rate(base: float, step: int) -> float:
                if step < warmup:
                    return base * step / warmup
                return decay(base, 1.0 if step >= end else (step - warmup) / max(1, end - warmup))

            return rate

        make.__name__, make.__doc__ = function.__name__, function.__doc__
        schedule(name, {**WARMUP, **meanings})(with_keys_of(function)(make))
        return function

    return register


@schedule("constant")
def constant(total_steps: int) -> Curve:
    """The optimizer's learning rate, unchanged."""
    return lambda base, step: base


@after_warmup("polynomial_decay", 0)
def polynomial_decay(power: float = 1.0, end_learning_rate: float = 0.0) -> Decay:
    """Linear warm-up from 0, then (base - end) * (remaining steps / steps after warm-up) ** power + end."""
    return lambda base, progress: (base - end_learning_rate) * (1 - progress) ** power + end_learning_rate


@after_warmup("linear_with_warmup")
def linear_with_warmup() -> Decay:
    """Linear warm-up from 0, then linear decay to 0 at the last step."""
    return lambda base, progress: base * (1 - progress)


@after_warmup("constant_with_warmup")
def constant_with_warmup() -> Decay:
    """Linear warm-up from 0, then constant."""
    return lambda base, progress: base


@after_warmup("cosine_with_warmup", num_cycles="The half cosine ends at 0.")
def cosine_with_warmup(num_cycles: float = 0.5) -> Decay:
    """Linear warm-up from 0, then base * (1 + cos(2 pi num_cycles progress)) / 2."""
    return lambda base, progress: base * _cosine(2 * num_cycles * progress)


@after_warmup("cosine_hard_restarts_with_warmup")
def cosine_hard_restarts_with_warmup(num_cycles: int = 1) -> Decay:
    """Linear warm-up from 0, then `num_cycles` cosines from the full rate to 0."""
    check_number("num_cycles", num_cycles, low=1)
    return lambda base, progress: 0.0 if progress >= 1 else base * _cosine(num_cycles * progress % 1.0)


@schedule(
    "slanted_triangular",
    {"cut_frac": "The fraction of all steps in which the rate rises.", "ratio": "Highest rate divided by lowest rate."},
)
def slanted_triangular(total_steps: int, cut_frac: float = 0.1, ratio: int = 32) -> Curve:
    """A short linear rise and a long linear fall (Howard and Ruder 2018, eq. 3), without gradual unfreezing."""
    cut = max(int(total_steps * cut_frac), 1)

    def triangle(base: float, step: int) -> float:
        step = min(step, total_steps)
        p = step / cut if step < cut else 1 - (step - cut) / max(1, total_steps - cut)
        return base * (1 + p * (ratio - 1)) / ratio

    return triangle


@schedule("noam", {"model_size": "The hidden size."})
def noam(total_steps: int, model_size: int, warmup_steps: int, factor: float = 1.0) -> Curve:
    """
    factor * model_size ** -0.5 * min(steps ** -0.5, steps * warmup_steps ** -1.5) (Vaswani et al. 2017). It replaces
    the optimizer's rates, those of parameter groups included.
    """
    check_number("model_size", model_size, low=1)
    check_number("warmup_steps", warmup_steps, low=1)
    scale = factor * model_size**-0.5
    return lambda base, step: scale * min(max(step, 1) ** -0.5, max(step, 1) * warmup_steps**-1.5)


@schedule("cosine", {"t_initial": "Epochs of the first cycle."}, unit="epochs")
def cosine(total_steps: int, t_initial: int, t_mul: float = 1.0, eta_min: float = 0.0, eta_mul: float = 1.0) -> Curve:
    """
    Cosine annealing with restarts (Loshchilov and Hutter 2016), stepped once an epoch: cycle n, counted from 0, has
    int(t_initial * t_mul ** n) epochs, in which the rate falls from base * eta_mul ** n towards `eta_min`. (torch's
    scheduler takes neither fractions nor `eta_mul`.)
    """
    check_number("t_initial", t_initial, low=1)
    check_number("eta_min", eta_min)
    check_number("t_mul", t_mul, open_low=True)
    if t_initial == 1 and t_mul == 1 and eta_mul == 1:
        logger.warning("learning_rate_scheduler cosine: with t_initial 1 every epoch restarts, so no rate changes")

    def restarting(base: float, epoch: int) -> float:
        cycle, length = 0, t_initial
        while epoch >= length:
            cycle, epoch = cycle + 1, epoch - length
            length = max(1, int(t_initial * t_mul**cycle))
        return eta_min + (base * eta_mul**cycle - eta_min) * _cosine(epoch / length)

    return restarting


def _cosine(fraction: float) -> float:
    """1 at 0, 0 at 1."""
    return max(0.0, (1 + math.cos(math.pi * fraction)) / 2)


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
