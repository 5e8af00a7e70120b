"""Learning rates as functions of the step, under AllenNLP's names."""

import logging
import math
from collections.abc import Callable

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.learning_rate_schedulers import Curve, schedule

logger = logging.getLogger(__name__)

WARMUP = {
    "warmup_steps": "Optimizer steps, or a fraction below 1 of all of them.",
    "num_warmup_steps": "AllenNLP's name for `warmup_steps`; takes precedence.",
    "num_training_steps": "The end of the curve; by default the last step of training.",
}
"""Keys that several schedules share, for their docstrings."""


@schedule("constant")
def constant(total_steps: int) -> Curve:
    """The optimizer's learning rate, unchanged."""
    return lambda base, step: base


@schedule("polynomial_decay", WARMUP)
def polynomial_decay(
    total_steps: int, power: float = 1.0, warmup_steps: int | float = 0, end_learning_rate: float = 0.0
) -> Curve:
    """Linear warm-up from 0, then (base - end) * (remaining steps / steps after warm-up) ** power + end."""

    def decay(base: float, progress: float) -> float:
        return (base - end_learning_rate) * (1 - progress) ** power + end_learning_rate

    return _after_warmup(decay, total_steps, warmup_steps)


@schedule("linear_with_warmup", WARMUP)
def linear_with_warmup(total_steps: int, warmup_steps: int | float = 100) -> Curve:
    """Linear warm-up from 0, then linear decay to 0 at the last step."""
    return polynomial_decay(total_steps, warmup_steps=warmup_steps)


@schedule("constant_with_warmup", WARMUP)
def constant_with_warmup(
    total_steps: int, warmup_steps: int | float = 100, num_warmup_steps: int | float | None = None
) -> Curve:
    """Linear warm-up from 0, then constant."""
    return _after_warmup(lambda base, progress: base, total_steps, warmup_steps, num_warmup_steps)


@schedule("cosine_with_warmup", {**WARMUP, "num_cycles": "The half cosine ends at 0."})
def cosine_with_warmup(
    total_steps: int,
    warmup_steps: int | float = 100,
    num_warmup_steps: int | float | None = None,
    num_training_steps: int | None = None,
    num_cycles: float = 0.5,
) -> Curve:
    """Linear warm-up from 0, then base * (1 + cos(2 pi num_cycles progress)) / 2."""

    def curve(base: float, progress: float) -> float:
        return base * _cosine(2 * num_cycles * progress)

    return _after_warmup(curve, total_steps, warmup_steps, num_warmup_steps, num_training_steps)


@schedule("cosine_hard_restarts_with_warmup", WARMUP)
def cosine_hard_restarts_with_warmup(
    total_steps: int,
    warmup_steps: int | float = 100,
    num_warmup_steps: int | float | None = None,
    num_training_steps: int | None = None,
    num_cycles: int = 1,
) -> Curve:
    """Linear warm-up from 0, then `num_cycles` cosines from the full rate to 0."""
    _check_at_least(1, num_cycles=num_cycles)

    def curve(base: float, progress: float) -> float:
        return 0.0 if progress >= 1 else base * _cosine(num_cycles * progress % 1.0)

    return _after_warmup(curve, total_steps, warmup_steps, num_warmup_steps, num_training_steps)


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
    _check_at_least(1, model_size=model_size, warmup_steps=warmup_steps)
    scale = factor * model_size**-0.5
    return lambda base, step: scale * min(max(step, 1) ** -0.5, max(step, 1) * warmup_steps**-1.5)


@schedule("cosine", {"t_initial": "Epochs of the first cycle."}, unit="epochs")
def cosine(total_steps: int, t_initial: int, t_mul: float = 1.0, eta_min: float = 0.0, eta_mul: float = 1.0) -> Curve:
    """
    Cosine annealing with restarts (Loshchilov and Hutter 2016), stepped once an epoch: cycle n, counted from 0, has
    int(t_initial * t_mul ** n) epochs, in which the rate falls from base * eta_mul ** n towards `eta_min`. (torch's
    scheduler takes neither fractions nor `eta_mul`.)
    """
    _check_at_least(1, t_initial=t_initial)
    _check_at_least(0, eta_min=eta_min)
    if t_mul <= 0:
        raise ConfigurationError(f"t_mul: found {t_mul!r}, allowed: above 0")
    if t_initial == 1 and t_mul == 1 and eta_mul == 1:
        logger.warning("learning_rate_scheduler cosine: with t_initial 1 every epoch restarts, so no rate changes")

    def restarting(base: float, epoch: int) -> float:
        cycle, length = 0, t_initial
        while epoch >= length:
            cycle, epoch = cycle + 1, epoch - length
            length = max(1, int(t_initial * t_mul**cycle))
        return eta_min + (base * eta_mul**cycle - eta_min) * _cosine(epoch / length)

    return restarting


def _after_warmup(
    curve: Callable[[float, float], float],
    total_steps: int,
    warmup_steps: int | float,
    num_warmup_steps: int | float | None = None,
    num_training_steps: int | None = None,
) -> Curve:
    """A linear rise from 0, then `curve(base, progress)`, with progress from 0 after warm-up to 1 at the end."""
    warmup_steps = warmup_steps if num_warmup_steps is None else num_warmup_steps
    end = total_steps if num_training_steps is None else num_training_steps
    if warmup_steps < 0 or (warmup_steps >= 1 and warmup_steps != int(warmup_steps)):
        raise ConfigurationError(
            f"learning_rate_scheduler.warmup_steps: found {warmup_steps!r}, allowed: a number of steps, "
            "or a fraction of all steps between 0 and 1"
        )
    warmup = math.ceil(warmup_steps * total_steps) if 0 < warmup_steps < 1 else int(warmup_steps)

    def rate(base: float, step: int) -> float:
        if step < warmup:
            return base * step / warmup
        return curve(base, 1.0 if step >= end else (step - warmup) / max(1, end - warmup))

    return rate


def _cosine(fraction: float) -> float:
    """1 at 0, 0 at 1."""
    return max(0.0, (1 + math.cos(math.pi * fraction)) / 2)


def _check_at_least(minimum: float, **values: float) -> None:
    for key, value in values.items():
        if value < minimum:
            raise ConfigurationError(f"{key}: found {value!r}, allowed: at least {minimum}")
