"""Cosines that start again."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.learning_rate_schedulers import CosineWithWarmup, LearningRateScheduler

logger = logging.getLogger(__name__)


@LearningRateScheduler.register("cosine")
class CosineWithRestarts(LearningRateScheduler):
    """
    Cosine annealing with restarts (Loshchilov and Hutter 2016), stepped once an epoch: the first cycle is `t_initial`
    epochs long, and cycle n, counted from 0, int(t_initial * t_mul ** n). In each the rate falls from
    base * eta_mul ** n towards `eta_min`. (torch's own scheduler takes neither fractions nor `eta_mul`.)

    Registered as a `LearningRateScheduler` with name "cosine".

    # Parameters

    t_initial : `int`
        Epochs of the first cycle.
    t_mul : `float`, optional (default = `1.0`)
    eta_min : `float`, optional (default = `0.0`)
    eta_mul : `float`, optional (default = `1.0`)
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        t_initial: int,
        t_mul: float = 1.0,
        eta_min: float = 0.0,
        eta_mul: float = 1.0,
    ) -> None:
        super().__init__(optimizer)
        for key, value, is_allowed, allowed in (
            ("t_initial", t_initial, t_initial >= 1, "at least 1"),
            ("t_mul", t_mul, t_mul > 0, "above 0"),
            ("eta_min", eta_min, eta_min >= 0, "at least 0"),
        ):
            if not is_allowed:
                raise ConfigurationError(f"{key}: found {value!r}, allowed: {allowed}")
        if t_initial == 1 and t_mul == 1 and eta_mul == 1:
            logger.warning("learning_rate_scheduler cosine: with t_initial 1 every epoch restarts, so no rate changes")
        self.t_initial = t_initial
        self.t_mul = t_mul
        self.eta_min = eta_min
        self.eta_mul = eta_mul
        self.base_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.epochs = 0

    def step(self, metric: float | None = None) -> None:
        self.epochs += 1
        self._set_rates()

    def _set_rates(self) -> None:
        cycle, length, into = 0, self.t_initial, self.epochs
        while into >= length:
            cycle, into = cycle + 1, into - length
            length = max(1, int(self.t_initial * self.t_mul**cycle))
        fraction = (1 + math.cos(math.pi * into / length)) / 2
        for group, base_rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = self.eta_min + (base_rate * self.eta_mul**cycle - self.eta_min) * fraction

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "base_rates": self.base_rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs = state["epochs"]
        self.base_rates = list(state["base_rates"])
        self._set_rates()


@LearningRateScheduler.register("cosine_hard_restarts_with_warmup")
class CosineHardRestartsWithWarmup(CosineWithWarmup):
    """
    Linear warm-up from 0, then `num_cycles` cosines from the full rate to 0, stepped with every optimizer step.

    Registered as a `LearningRateScheduler` with name "cosine_hard_restarts_with_warmup".

    # Parameters

    warmup_steps : `int | float`, optional (default = `100`)
        Optimizer steps, or a fraction below 1 of all of them.
    num_warmup_steps : `int | float`, optional (default = `None`)
        AllenNLP's name for the same; wins over `warmup_steps`.
    num_training_steps : `int`, optional (default = `None`)
        Where the last cosine ends; by default at the last step of training.
    num_cycles : `int`, optional (default = `1`)
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_epochs: int,
        num_steps_per_epoch: int,
        warmup_steps: int | float = 100,
        num_warmup_steps: int | float | None = None,
        num_training_steps: int | None = None,
        num_cycles: int = 1,
    ) -> None:
        if num_cycles < 1:
            raise ConfigurationError(f"num_cycles: found {num_cycles}, allowed: at least 1")
        super().__init__(
            optimizer, num_epochs, num_steps_per_epoch, warmup_steps, num_warmup_steps, num_training_steps, num_cycles
        )

    def rate(self, base_rate: float, steps: int) -> float:
        if steps < self.warmup_steps:
            return base_rate * steps / self.warmup_steps
        progress = (steps - self.warmup_steps) / max(1, self.end - self.warmup_steps)
        if progress >= 1:
            return 0.0
        return base_rate * (1 + math.cos(math.pi * ((self.num_cycles * progress) % 1.0))) / 2
