"""Combines the gradients of hidden states that both an exit and the next block read."""

import math
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.registry import Registrable

Factor = float | list[float]


class Fork(torch.nn.Module, Registrable):
    """
    Combines, in training, the gradients of a hidden state that an exit and the next block both read; outputs do not
    change. Factors are buffers that are updated in place, so that a captured CUDA graph reads the current values.
    """

    default_implementation = "sum"

    def bind(self, num_exits: int) -> None:
        """Called once by the network, with its number of exits: creates what there is one of per exit."""

    def start_step(self, step: int, total_steps: int) -> None:
        """Called before each optimizer step, with the number of steps done and planned."""

    def split(self, hidden_states: Tensor, exit_number: int, num_exits: int) -> tuple[Tensor, Tensor]:
        """`(batch, tokens, hidden)` hidden states for the exit, counted from 1, and for the next block."""
        return _Fork.apply(hidden_states, self, exit_number, num_exits)  # type: ignore[no-untyped-call]

    def combine(self, from_exit: Tensor, from_above: Tensor, exit_number: int, num_exits: int) -> Tensor:
        """The gradient of the hidden states, `(batch, tokens, hidden)`, given those of the two readers."""
        raise TypeError(f"{type(self).__name__} does not define combine")


class _Fork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_states: Tensor, fork: Fork, exit_number: int, num_exits: int) -> tuple[Tensor, Tensor]:
        ctx.fork, ctx.place = fork, (exit_number, num_exits)
        return hidden_states.view_as(hidden_states), hidden_states.view_as(hidden_states)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.fork.combine(*gradients, *ctx.place), None, None, None


@Fork.register("sum")
class SumFork(Fork):
    """
    The sum of both gradients, as without a fork.

    Registered as a `Fork` with name "sum", the default.
    """

    def split(self, hidden_states: Tensor, exit_number: int, num_exits: int) -> tuple[Tensor, Tensor]:
        return hidden_states, hidden_states


@Fork.register("detached")
class DetachedFork(Fork):
    """
    Only the exit's gradient: each block is trained by the next exit only (SWEET, Rotem et al. 2023).

    Registered as a `Fork` with name "detached".
    """

    def split(self, hidden_states: Tensor, exit_number: int, num_exits: int) -> tuple[Tensor, Tensor]:
        return hidden_states, hidden_states.detach()


@Fork.register("equilibrium")
class EquilibriumFork(Fork):
    """
    ElasticBERT's gradient equilibrium (Liu et al. 2022; Li et al. 2019): at exit i of L, (g_exit + (L - i) g_above) /
    (L - i + 1), so that each block gets the mean of the gradients of the exits above it.

    Registered as a `Fork` with name "equilibrium".
    """

    def combine(self, from_exit: Tensor, from_above: Tensor, exit_number: int, num_exits: int) -> Tensor:
        later = num_exits - exit_number
        return (from_exit + later * from_above) / (later + 1)


@Fork.register("scaled")
class ScaledFork(Fork):
    """
    exit * g_exit + above * g_above.

    Registered as a `Fork` with name "scaled".

    # Parameters

    exit, above : `float` or `list[float]`, optional (default = `1.0`)
        A factor from 0; a list of two is the factor at the first and at the last step of training, linear in between.
    exits : `list[int]`, optional (default = all)
        Numbers of the exits with these factors; at the others both are 1. With `above: 0` nothing above the exit trains
        it and the blocks below.
    """

    factors: Tensor  # `(2,)` of the exit and of the next block, in this step

    def __init__(self, exit: Factor = 1.0, above: Factor = 1.0, exits: list[int] | None = None) -> None:
        super().__init__()
        self.exits = exits
        self.ranges = (_range("exit", exit), _range("above", above))
        self.register_buffer("factors", torch.zeros(2), persistent=False)
        self.start_step(0, 1)

    def start_step(self, step: int, total_steps: int) -> None:
        done = min(1.0, step / max(total_steps - 1, 1))
        for index, (first, last) in enumerate(self.ranges):
            self.factors[index] = first + done * (last - first)

    def bind(self, num_exits: int) -> None:
        if any(not 1 <= number <= num_exits for number in self.exits or ()):
            raise ConfigurationError(f"fork.exits: found {self.exits}, allowed: 1 to {num_exits}")

    def combine(self, from_exit: Tensor, from_above: Tensor, exit_number: int, num_exits: int) -> Tensor:
        if self.exits is not None and exit_number not in self.exits:
            return from_exit + from_above
        return self.factors[0] * from_exit + self.factors[1] * from_above


@Fork.register("projected")
class ProjectedFork(ScaledFork):
    """
    As "scaled", after removing conflicts: for each sample, if the two gradients have a negative inner product, each
    loses its component along the other. The idea of PCGrad (Yu et al. 2020), on a hidden state in place of parameters.

    Registered as a `Fork` with name "projected". The keys are those of "scaled".
    """

    def combine(self, from_exit: Tensor, from_above: Tensor, exit_number: int, num_exits: int) -> Tensor:
        # In float32: squares of small gradients vanish in half precision.
        exit_rows, above_rows = from_exit.flatten(1).float(), from_above.flatten(1).float()
        product = (exit_rows * above_rows).sum(1, keepdim=True).clamp(max=0)  # (batch, 1), 0 without conflict
        tiny = torch.finfo(torch.float32).tiny
        along_above = product / above_rows.square().sum(1, keepdim=True).clamp(min=tiny)
        along_exit = product / exit_rows.square().sum(1, keepdim=True).clamp(min=tiny)
        combined = super().combine(
            exit_rows - along_above * above_rows, above_rows - along_exit * exit_rows, exit_number, num_exits
        )
        return combined.view_as(from_exit).to(from_exit.dtype)


@Fork.register("gradnorm")
class GradNormFork(Fork):
    """
    a g_exit + b g_above with learned factors, after GradNorm (Chen et al. 2018): a and b, with sum 2, are learned at
    each exit, such that the exit's gradient has the given share of the two norms. After each backward pass they take a
    step of gradient descent on

        (ln(a |g_exit| / share) - ln(b |g_above| / (1 - share)))^2 / 2    by    ln(a / b).

    GradNorm has the distance |a |g_exit| - (a |g_exit| + b |g_above|) / 2|, and shares by the tasks' losses, which are
    not known here. Factors are saved with the model; in distributed training they are those of the first process.

    Registered as a `Fork` with name "gradnorm".

    # Parameters

    share : `float`, optional (default = `0.5`)
        Between 0 and 1; 0.5: equal norms.
    rate : `float`, optional (default = `0.1`)
        Learning rate, up to 1.
    max_ratio : `float`, optional (default = `10.0`)
        Limit of a / b and b / a, so that a reader whose gradient vanishes does not silence the other.
    """

    log_ratio: Tensor  # `(exits - 1,)` ln(a / b)

    def __init__(self, share: float = 0.5, rate: float = 0.1, max_ratio: float = 10.0) -> None:
        super().__init__()
        check_number("share", share, high=1, open_low=True, open_high=True)
        check_number("rate", rate, high=1, open_low=True)
        check_number("max_ratio", max_ratio, low=1)
        self.limit = math.log(max_ratio)
        self.target = math.log(share / (1 - share))
        self.rate = rate

    def bind(self, num_exits: int) -> None:
        self.register_buffer("log_ratio", torch.zeros(max(num_exits - 1, 0)))

    def combine(self, from_exit: Tensor, from_above: Tensor, exit_number: int, num_exits: int) -> Tensor:
        log_ratio = self.log_ratio[exit_number - 1]
        factor = 2 * log_ratio.sigmoid()
        combined = factor * from_exit + (2 - factor) * from_above
        norms = torch.stack([from_exit.float().norm(), from_above.float().norm()])
        difference = log_ratio + norms[0].log() - norms[1].log() - self.target
        # A reader without gradient, or one that overflowed, leaves the factors as they are.
        log_ratio -= self.rate * difference.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        log_ratio.clamp_(-self.limit, self.limit)
        return combined


def _range(key: str, value: Factor) -> tuple[float, float]:
    values = [value, value] if isinstance(value, (int, float)) else list(value)
    if len(values) != 2 or min(values) < 0:
        raise ConfigurationError(
            f"{key}: found {value!r}, allowed: a number from 0, or two, of the first and last step"
        )
    return float(values[0]), float(values[1])
