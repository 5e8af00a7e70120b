"""Learning rates over time, by AllenNLP's names and stepped at AllenNLP's moments."""

from __future__ import annotations

import math
from typing import Any

import torch

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.common.registry import Registrable


class LearningRateScheduler(Registrable):
    """
    Sets the learning rates of an optimizer's groups.

    The trainer calls `step_batch` right before every optimizer step (so once for all accumulated batches, and never
    once more per process) and `step` after every epoch. An implementation uses one of the two.

    # Parameters

    optimizer : `torch.optim.Optimizer`
        Given by the trainer, like `num_epochs` and `num_steps_per_epoch` (optimizer steps) where they are taken.
    """

    needs_validation_metric = False

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if any(group["lr"] is None for group in optimizer.param_groups):
            raise ConfigurationError(
                "learning_rate_scheduler: the optimizer chooses its own learning rate (lr null), allowed: null, or an "
                "optimizer with lr and relative_step false"
            )
        self.optimizer = optimizer

    def step(self, metric: float | None = None) -> None:
        """One more epoch is over; `metric` is the validation metric, higher is better."""

    def step_batch(self) -> None:
        """One more optimizer step is about to be made."""

    def state_dict(self) -> dict[str, Any]:
        raise TypeError(f"{type(self).__name__} does not define state_dict")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise TypeError(f"{type(self).__name__} does not define load_state_dict")


class BatchScheduler(LearningRateScheduler):
    """A scheduler whose learning rate is `rate(base rate, steps)`, `steps` counted in optimizer steps from 1."""

    def __init__(self, optimizer: torch.optim.Optimizer, num_epochs: int, num_steps_per_epoch: int) -> None:
        super().__init__(optimizer)
        self.total_steps = num_epochs * num_steps_per_epoch
        self.steps = 0
        self.base_rates = [float(group["lr"]) for group in optimizer.param_groups]

    def start(self) -> None:
        """Sets the rates of step 0; the end of every constructor."""
        self._set_rates()

    def rate(self, base_rate: float, steps: int) -> float:
        raise TypeError(f"{type(self).__name__} does not define rate")

    def step_batch(self) -> None:
        self.steps += 1
        self._set_rates()

    def _set_rates(self) -> None:
        for group, base_rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = self.rate(base_rate, self.steps)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "base_rates": self.base_rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.base_rates = list(state["base_rates"])
        self._set_rates()


def resolve_warmup(warmup_steps: int | float, total_steps: int) -> int:
    """Warm-up in optimizer steps; a fraction below 1 is a part of all steps, rounded up."""
    if warmup_steps < 0 or (warmup_steps >= 1 and warmup_steps != int(warmup_steps)):
        raise ConfigurationError(
            f"learning_rate_scheduler.warmup_steps: found {warmup_steps!r}, allowed: a number of steps, "
            "or a fraction of all steps between 0 and 1"
        )
    return math.ceil(warmup_steps * total_steps) if 0 < warmup_steps < 1 else int(warmup_steps)


@LearningRateScheduler.register("polynomial_decay")
class PolynomialDecay(BatchScheduler):
    """
    Linear warm-up from 0, then (base - end) * (remaining steps / steps after warm-up) ** power + end.

    Registered as a `LearningRateScheduler` with name "polynomial_decay".

    # Parameters

    power : `float`, optional (default = `1.0`)
    warmup_steps : `int | float`, optional (default = `0`)
        Optimizer steps, or a fraction below 1 of all of them.
    end_learning_rate : `float`, optional (default = `0.0`)
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_epochs: int,
        num_steps_per_epoch: int,
        power: float = 1.0,
        warmup_steps: int | float = 0,
        end_learning_rate: float = 0.0,
    ) -> None:
        super().__init__(optimizer, num_epochs, num_steps_per_epoch)
        self.power = power
        self.warmup_steps = resolve_warmup(warmup_steps, self.total_steps)
        self.end_learning_rate = end_learning_rate
        self.start()

    def rate(self, base_rate: float, steps: int) -> float:
        if steps < self.warmup_steps:
            return base_rate * steps / self.warmup_steps
        if steps >= self.total_steps:
            return self.end_learning_rate
        remaining = (self.total_steps - steps) / (self.total_steps - self.warmup_steps)
        return (base_rate - self.end_learning_rate) * remaining**self.power + self.end_learning_rate


@LearningRateScheduler.register("linear_with_warmup")
class LinearWithWarmup(PolynomialDecay):
    """
    Linear warm-up from 0, then linear decay to 0 at the last step.

    Registered as a `LearningRateScheduler` with name "linear_with_warmup".

    # Parameters

    warmup_steps : `int | float`, optional (default = `100`)
        Optimizer steps, or a fraction below 1 of all of them.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_epochs: int,
        num_steps_per_epoch: int,
        warmup_steps: int | float = 100,
    ) -> None:
        super().__init__(optimizer, num_epochs, num_steps_per_epoch, power=1.0, warmup_steps=warmup_steps)


@LearningRateScheduler.register("constant_with_warmup")
class ConstantWithWarmup(BatchScheduler):
    """
    Linear warm-up from 0, then constant.

    Registered as a `LearningRateScheduler` with name "constant_with_warmup".

    # Parameters

    warmup_steps : `int | float`, optional (default = `100`)
        Optimizer steps, or a fraction below 1 of all of them.
    num_warmup_steps : `int | float`, optional (default = `None`)
        AllenNLP's name for the same; wins over `warmup_steps`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_epochs: int,
        num_steps_per_epoch: int,
        warmup_steps: int | float = 100,
        num_warmup_steps: int | float | None = None,
    ) -> None:
        super().__init__(optimizer, num_epochs, num_steps_per_epoch)
        chosen = warmup_steps if num_warmup_steps is None else num_warmup_steps
        self.warmup_steps = resolve_warmup(chosen, self.total_steps)
        self.start()

    def rate(self, base_rate: float, steps: int) -> float:
        return base_rate * steps / self.warmup_steps if steps < self.warmup_steps else base_rate


@LearningRateScheduler.register("cosine_with_warmup")
class CosineWithWarmup(ConstantWithWarmup):
    """
    Linear warm-up from 0, then base * (1 + cos(2 pi cycles progress)) / 2.

    Registered as a `LearningRateScheduler` with name "cosine_with_warmup".

    # Parameters

    warmup_steps : `int | float`, optional (default = `100`)
        Optimizer steps, or a fraction below 1 of all of them.
    num_warmup_steps : `int | float`, optional (default = `None`)
        AllenNLP's name for the same; wins over `warmup_steps`.
    num_training_steps : `int`, optional (default = `None`)
        Where the curve ends; by default at the last step of training.
    num_cycles : `float`, optional (default = `0.5`)
        The half cosine ends at 0.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_epochs: int,
        num_steps_per_epoch: int,
        warmup_steps: int | float = 100,
        num_warmup_steps: int | float | None = None,
        num_training_steps: int | None = None,
        num_cycles: float = 0.5,
    ) -> None:
        self.num_cycles = num_cycles
        self.end = num_training_steps if num_training_steps is not None else num_epochs * num_steps_per_epoch
        super().__init__(optimizer, num_epochs, num_steps_per_epoch, warmup_steps, num_warmup_steps)

    def rate(self, base_rate: float, steps: int) -> float:
        if steps < self.warmup_steps:
            return base_rate * steps / self.warmup_steps
        progress = min(1.0, (steps - self.warmup_steps) / max(1, self.end - self.warmup_steps))
        return base_rate * max(0.0, (1 + math.cos(2 * math.pi * self.num_cycles * progress)) / 2)


@LearningRateScheduler.register("slanted_triangular")
class SlantedTriangular(BatchScheduler):
    """
    A short linear rise and a long linear fall (Howard and Ruder 2018, eq. 3), without gradual unfreezing.

    Registered as a `LearningRateScheduler` with name "slanted_triangular".

    # Parameters

    cut_frac : `float`, optional (default = `0.1`)
        The part of all steps in which the rate rises.
    ratio : `int`, optional (default = `32`)
        How much smaller the lowest rate is than the highest.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_epochs: int,
        num_steps_per_epoch: int,
        cut_frac: float = 0.1,
        ratio: int = 32,
    ) -> None:
        super().__init__(optimizer, num_epochs, num_steps_per_epoch)
        self.cut = max(int(self.total_steps * cut_frac), 1)
        self.ratio = ratio
        self.start()

    def rate(self, base_rate: float, steps: int) -> float:
        steps = min(steps, self.total_steps)
        if steps < self.cut:
            p = steps / self.cut
        else:
            p = 1 - (steps - self.cut) / max(1, self.total_steps - self.cut)
        return base_rate * (1 + p * (self.ratio - 1)) / self.ratio


@LearningRateScheduler.register("constant")
class Constant(BatchScheduler):
    """
    The optimizer's learning rate, unchanged.

    Registered as a `LearningRateScheduler` with name "constant".
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer, num_epochs=0, num_steps_per_epoch=0)

    def rate(self, base_rate: float, steps: int) -> float:
        return base_rate


class EpochScheduler(LearningRateScheduler):
    """One of torch's schedulers, stepped once an epoch."""

    torch_scheduler: Any

    def step(self, metric: float | None = None) -> None:
        self.torch_scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        state = self.torch_scheduler.state_dict()
        # torch.optim's MultiStepLR keeps a Counter, which a weights_only load refuses; a plain dict says the same.
        return {key: dict(value) if isinstance(value, dict) else value for key, value in state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        current = self.torch_scheduler.state_dict()
        restored = {
            key: type(current[key])(value) if isinstance(current.get(key), dict) else value
            for key, value in state.items()
        }
        self.torch_scheduler.load_state_dict(restored)


@LearningRateScheduler.register("step")
class Step(EpochScheduler):
    """
    Multiplies the rate by `gamma` every `step_size` epochs.

    Registered as a `LearningRateScheduler` with name "step".

    # Parameters

    step_size : `int`
    gamma : `float`, optional (default = `0.1`)
    """

    def __init__(self, optimizer: torch.optim.Optimizer, step_size: int, gamma: float = 0.1) -> None:
        super().__init__(optimizer)
        self.torch_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size, gamma)


@LearningRateScheduler.register("multi_step")
class MultiStep(EpochScheduler):
    """
    Multiplies the rate by `gamma` after each of the named numbers of epochs.

    Registered as a `LearningRateScheduler` with name "multi_step".

    # Parameters

    milestones : `list[int]`
    gamma : `float`, optional (default = `0.1`)
    """

    def __init__(self, optimizer: torch.optim.Optimizer, milestones: list[int], gamma: float = 0.1) -> None:
        super().__init__(optimizer)
        self.torch_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(milestones), gamma)


@LearningRateScheduler.register("exponential")
class Exponential(EpochScheduler):
    """
    Multiplies the rate by `gamma` every epoch.

    Registered as a `LearningRateScheduler` with name "exponential".

    # Parameters

    gamma : `float`, optional (default = `0.1`)
    """

    def __init__(self, optimizer: torch.optim.Optimizer, gamma: float = 0.1) -> None:
        super().__init__(optimizer)
        self.torch_scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)


@LearningRateScheduler.register("reduce_on_plateau")
class ReduceOnPlateau(EpochScheduler):
    """
    Multiplies the rate by `factor` when the trainer's `validation_metric` has not become better for `patience` epochs.

    Registered as a `LearningRateScheduler` with name "reduce_on_plateau".

    # Parameters

    mode : `str`, optional (default = `"max"`)
        Only "max": the trainer hands over its metric with the sign that makes higher better.
    factor : `float`, optional (default = `0.1`)
    patience : `int`, optional (default = `10`)
    threshold : `float`, optional (default = `1e-4`)
    threshold_mode : `str`, optional (default = `"rel"`)
    cooldown : `int`, optional (default = `0`)
    min_lr : `float`, optional (default = `0.0`)
    eps : `float`, optional (default = `1e-8`)
    """

    needs_validation_metric = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        mode: str = "max",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(optimizer)
        if mode != "max":
            raise ConfigurationError(not_allowed("learning_rate_scheduler.mode", mode, ["max"]))
        if threshold_mode not in ("rel", "abs"):
            raise ConfigurationError(
                not_allowed("learning_rate_scheduler.threshold_mode", threshold_mode, ["rel", "abs"])
            )
        self.torch_scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer,
            mode="max",
            factor=factor,
            patience=patience,
            threshold=threshold,
            threshold_mode="rel" if threshold_mode == "rel" else "abs",
            cooldown=cooldown,
            min_lr=min_lr,
            eps=eps,
        )

    def step(self, metric: float | None = None) -> None:
        if metric is None:
            raise ConfigurationError("learning_rate_scheduler reduce_on_plateau needs validation data")
        self.torch_scheduler.step(metric)
