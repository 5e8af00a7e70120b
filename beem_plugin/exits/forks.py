"""Combines the gradients of hidden states that both an exit and the next block read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable

Factor = float | list[float]


class Fork(Registrable):
    """
    Combines, in training, the gradients of a hidden state that an exit and the next block both read. Outputs are the
    same for all forks. The last exit has no next block and no fork.
    """

    default_implementation = "sum"

    def start_step(self, step: int, total_steps: int) -> None:
        """Called before each optimizer step, with the number of steps done and planned."""

    def split(self, hidden_states: Tensor, exit_number: int, num_exits: int) -> tuple[Tensor, Tensor]:
        """
        # Parameters

        hidden_states : `Tensor`
            `(batch, tokens, hidden)`
        exit_number, num_exits : `int`
            Exits are counted from 1.

        # Returns

        `tuple[Tensor, Tensor]`
            The hidden states for the exit and for the next block.
        """
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
    """

    def __init__(self, exit: Factor = 1.0, above: Factor = 1.0) -> None:
        self.exit_range = _range("exit", exit)
        self.above_range = _range("above", above)
        self.start_step(0, 1)

    def start_step(self, step: int, total_steps: int) -> None:
        done = min(1.0, step / max(total_steps - 1, 1))
        self.exit, self.above = (first + done * (last - first) for first, last in (self.exit_range, self.above_range))

    def combine(self, from_exit: Tensor, from_above: Tensor, exit_number: int, num_exits: int) -> Tensor:
        return self.exit * from_exit + self.above * from_above


@Fork.register("projected")
class ProjectedFork(ScaledFork):
    """
    As "scaled", after removing conflicts: for each sample, if the two gradients have a negative inner product, each
    loses its component along the other. The idea of PCGrad (Yu et al. 2020), on a hidden state in place of parameters.

    Registered as a `Fork` with name "projected".

    # Parameters

    exit, above : `float` or `list[float]`, optional (default = `1.0`)
        As of "scaled".
    """

    def combine(self, from_exit: Tensor, from_above: Tensor, exit_number: int, num_exits: int) -> Tensor:
        # In float32: squares of small gradients vanish in half precision.
        exit_rows, above_rows = from_exit.flatten(1).float(), from_above.flatten(1).float()
        product = (exit_rows * above_rows).sum(1, keepdim=True).clamp(max=0)  # (batch, 1), 0 without conflict
        tiny = torch.finfo(torch.float32).tiny
        along_above = product / above_rows.square().sum(1, keepdim=True).clamp(min=tiny)
        along_exit = product / exit_rows.square().sum(1, keepdim=True).clamp(min=tiny)
        combined = self.exit * (exit_rows - along_above * above_rows) + self.above * (
            above_rows - along_exit * exit_rows
        )
        return combined.view_as(from_exit).to(from_exit.dtype)


def _range(key: str, value: Factor) -> tuple[float, float]:
    values = [value, value] if isinstance(value, (int, float)) else list(value)
    if len(values) != 2 or min(values) < 0:
        raise ConfigurationError(
            f"{key}: found {value!r}, allowed: a number from 0, or two, of the first and last step"
        )
    return float(values[0]), float(values[1])
