"""The step of an exit policy at one exit, traced as a graph of tensor operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState


def traced_samples(num_labels: int) -> int:
    """Number of samples of the traced example. It differs from the number of labels, to tell the dimensions apart."""
    return 7 if num_labels != 7 else 11


class UnsupportedStep(Exception):
    """The step contains an operation that has no translation."""


@dataclass
class TracedStep:
    """
    The step of one exit. Placeholders of `module` are its signals and the tensors of the state `before`; outputs are
    which samples exit, the score and the output, each `None` if there is none, and the tensors of the state `after`.
    The states are examples.
    """

    module: GraphModule
    before: ExitState
    after: ExitState
    has_score: bool


def trace_step(
    policy: ExitPolicy,
    exit_number: int,
    before: ExitState,
    example: dict[str, Tensor],
    signals_of: Callable[[dict[str, Tensor]], ExitSignals],
    decides_only: bool = False,
) -> TracedStep:
    """Traces `policy.step`; `signals_of` makes signals of tensors as in `example`. `decides_only`: no output."""
    after = ExitState()
    has_score = False

    def step(*tensors: Tensor) -> list[Any]:
        nonlocal after, has_score
        signals = signals_of(dict(zip(example, tensors)))
        state = ExitState(**dict(zip(before.tensors, tensors[len(example) :], strict=True)))
        leaves, after = policy.step(exit_number, signals, state)
        score = None if decides_only else policy.score(after)
        has_score = score is not None
        output = None if decides_only else policy.output(exit_number, signals, after)
        return [leaves, score, output, *after.tensors.values()]

    try:
        with torch.inference_mode(False), torch.no_grad():  # tracing needs ordinary tensors
            inputs = [tensor.clone() for tensor in (*example.values(), *before.tensors.values())]
            module = make_fx(step, decomposition_table=primitives())(*inputs)
            step(*inputs)
    except Exception as error:  # whatever a user's step does that cannot be traced
        raise UnsupportedStep(f"{type(error).__name__}: {error}") from error
    module.graph.eliminate_dead_code()
    return TracedStep(module, before, after, has_score)


@cache
def primitives() -> dict[Any, Callable[..., Any]]:
    """Decompositions, so that few operations need a translation."""
    return {**core_aten_decompositions(), **get_decompositions([torch.ops.aten._log_softmax])}
