"""Learning rate schedulers: the base classes, and torch's own under AllenNLP's names."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch.optim import lr_scheduler

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.recipes import key_reference, with_keys_of
from beem_plugin.common.registry import Registrable

Curve = Callable[[float, int], float]
"""The learning rate for a base rate and a count of steps or epochs."""
F = TypeVar("F", bound=Callable[..., Curve])


class LearningRateScheduler(Registrable):
    """
    Sets the learning rates of an optimizer's groups.

    The trainer calls `step_batch` before every optimizer step (once for all accumulated batches and all processes) and
    `step` after every epoch. An implementation uses one of the two.

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
        """Called after an epoch; `metric` is the validation metric, higher is better."""

    def step_batch(self) -> None:
        """Called before an optimizer step."""

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class CurveScheduler(LearningRateScheduler):
    """Sets a number of each group, the rate, to `curve(its base, count)`: `count` is that of `step_batch` or `step`."""

    unit: Literal["steps", "epochs"] = "steps"
    """What is counted; also the key of the count in checkpoints."""

    def __init__(self, optimizer: torch.optim.Optimizer, curve: Curve) -> None:
        super().__init__(optimizer)
        self.curve = curve
        self.base_rates = [self.value_of(group) for group in optimizer.param_groups]
        self._set_count(0)

    def value_of(self, group: dict[str, Any]) -> float:
        return float(group["lr"])

    def set_value(self, group: dict[str, Any], value: float) -> None:
        group["lr"] = value

    def step_batch(self) -> None:
        if self.unit == "steps":
            self._set_count(self.count + 1)

    def step(self, metric: float | None = None) -> None:
        if self.unit == "epochs":
            self._set_count(self.count + 1)

    def _set_count(self, count: int) -> None:
        self.count = count
        for group, base_rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            self.set_value(group, self.curve(base_rate, count))

    def state_dict(self) -> dict[str, Any]:
        return {self.unit: self.count, "base_rates": self.base_rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.base_rates = list(state["base_rates"])
        self._set_count(state[self.unit])


def schedule(
    name: str,
    meanings: Mapping[str, str] | None = None,
    unit: Literal["steps", "epochs"] = "steps",
    kind: type[CurveScheduler] | None = None,
) -> Callable[[F], F]:
    """Registers a function of the number of steps and config keys, which returns a curve over `unit`."""
    base = kind or LearningRateScheduler

    def register(function: F) -> F:
        @with_keys_of(function, without=("total_steps",))
        def __init__(
            self: Any,
            optimizer: torch.optim.Optimizer,
            num_epochs: int = 0,
            num_steps_per_epoch: int = 0,
            **options: Any,
        ) -> None:
            CurveScheduler.__init__(self, optimizer, function(num_epochs * num_steps_per_epoch, **options))

        about = f'{inspect.getdoc(function)}\n\nRegistered as a `{base.__name__}` with name "{name}".'
        doc = key_reference(about, __init__, meanings)
        members = {"__init__": __init__, "__doc__": doc, "__module__": __name__, "unit": unit}
        base.register(name)(type(function.__name__, (kind or CurveScheduler,), members))
        return function

    return register


class TorchScheduler(LearningRateScheduler):
    """One of torch's schedulers, stepped once an epoch."""

    torch_scheduler: Any

    def step(self, metric: float | None = None) -> None:
        self.torch_scheduler.step(*([metric] if self.needs_validation_metric else []))

    def state_dict(self) -> dict[str, Any]:
        state = self.torch_scheduler.state_dict()
        # MultiStepLR keeps a Counter, which a weights_only load refuses.
        return {key: dict(value) if isinstance(value, dict) else value for key, value in state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        current = self.torch_scheduler.state_dict()
        counters = {key: type(current[key])(value) for key, value in state.items() if isinstance(value, dict)}
        self.torch_scheduler.load_state_dict({**state, **counters})


def _register(name: str, wrapped: type, about: str, types: dict[str, Any] | None = None, **defaults: Any) -> None:
    """Registers a class of torch; `defaults` and `types` differ from those of its constructor."""

    @with_keys_of(wrapped.__init__, ("last_epoch", "verbose"), defaults, types or {})  # type: ignore[misc]
    def __init__(self: Any, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        LearningRateScheduler.__init__(self, optimizer)
        self.torch_scheduler = wrapped(optimizer, **{**defaults, **options})
        self.needs_validation_metric = wrapped is lr_scheduler.ReduceLROnPlateau

    about += (
        f'\n\nRegistered as a `LearningRateScheduler` with name "{name}", stepped once an epoch. The keys are those of '
        f"`torch.optim.lr_scheduler.{wrapped.__name__}`."
    )
    members = {"__init__": __init__, "__doc__": key_reference(about, __init__), "__module__": __name__}
    LearningRateScheduler.register(name)(type(wrapped.__name__, (TorchScheduler,), members))


_register("step", lr_scheduler.StepLR, "Multiplies the rate by `gamma` every `step_size` epochs.")
_register(
    "multi_step", lr_scheduler.MultiStepLR, "Multiplies the rate by `gamma` after each of `milestones`, in epochs."
)
_register("exponential", lr_scheduler.ExponentialLR, "Multiplies the rate by `gamma` every epoch.", gamma=0.1)
_register(
    "reduce_on_plateau",
    lr_scheduler.ReduceLROnPlateau,
    "Multiplies the rate by `factor` when the trainer's `validation_metric` has not improved for `patience` epochs. "
    "`mode` must be max: the trainer passes its metric with the sign that makes higher better.",
    {"mode": Literal["max"], "min_lr": float},
    mode="max",
)
