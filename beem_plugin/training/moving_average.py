"""Averages of weights over the steps of a training."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn

from beem_plugin.common.errors import check_number
from beem_plugin.common.registry import Registrable


class MovingAverage(Registrable):
    """
    Averages of the trained weights, the `parameters` in the optimizer. Validation and the best weights use them;
    training goes on from the last step's weights. They take as much memory as the weights.
    """

    default_implementation = "exponential"

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.averages = [parameter.detach().clone() for parameter in parameters]

    def apply(self, num_updates: int) -> None:
        """Called after an optimizer step, with the number of steps so far."""
        raise NotImplementedError

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The parameters have the average values in the block."""
        latest = [parameter.detach().clone() for parameter in self.parameters]
        _copy(self.averages, self.parameters)
        try:
            yield
        finally:
            _copy(latest, self.parameters)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self.averages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _copy(state["averages"], self.averages)


@torch.no_grad()
def _copy(values: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for value, target in zip(values, targets, strict=True):
        target.copy_(value)


@MovingAverage.register("exponential")
@dataclass(eq=False)
class ExponentialMovingAverage(MovingAverage):
    """
    average = d * average + (1 - d) * weights, where d = min(decay, (numerator + step) / (denominator + step)).

    Registered as a `MovingAverage` with name "exponential", the default.

    # Parameters

    decay : `float`, optional (default = `0.9999`)
        For a training of few steps take a lower one: the average reaches back about 1 / (1 - decay) steps.
    numerator : `float`, optional (default = `1.0`)
    denominator : `float`, optional (default = `10.0`)
    """

    parameters: list[torch.nn.Parameter]
    decay: float = 0.9999
    numerator: float = 1.0
    denominator: float = 10.0

    def __post_init__(self) -> None:
        super().__init__(self.parameters)
        check_number("decay", self.decay, high=1, open_high=True)

    def apply(self, num_updates: int) -> None:
        decay = min(self.decay, (self.numerator + num_updates) / (self.denominator + num_updates))
        get_ema_multi_avg_fn(decay)(self.averages, self.parameters, num_updates)
