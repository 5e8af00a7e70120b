"""Base class of vocabulary heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.registry import Registrable
from beem_plugin.exits.branches.branch import Branch

Memory = Mapping[str, Tensor]
"""Tensors `(tokens, ...)` that earlier exits store for later ones."""


class VocabularyHead(torch.nn.Module, Registrable):
    """
    An exit over a vocabulary in two parts: `features` of a hidden state, and a matrix `weight` with a row for each
    entry of the vocabulary. The logits are their product. The parts are separate, so that a loss can process tokens in
    chunks, and an exit can compute the logits of a few candidates only.

    The last exit has no such head: it is the decoder's own output.

    # Parameters

    norm, output_weight, exit_number, num_exits
        Filled in, if the constructor has them: the decoder's final layer normalisation, and its `(vocabulary, hidden)`
        matrix, from which a head is initialised.
    """

    default_implementation = "tied"

    remembers: ClassVar[bool] = False
    """Whether it reads what `memory_after` of earlier exits returned, whether or not these were evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.branch: Branch | None = None
        """Further layers of the exit's own, whose output the methods get as `hidden`; set by the decoder."""

    def join(self, heads: Sequence[VocabularyHead]) -> None:
        """Called once with the heads of all exits but the last, in order, so that they can share parameters."""

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        """`(tokens, hidden)` to `(tokens, size)`."""
        raise TypeError(f"{type(self).__name__} does not define features")

    def memory_after(self, hidden: Tensor, memory: Memory) -> dict[str, Tensor]:
        """The tensors that this exit stores for later exits."""
        return {}

    def state(self, hidden: Tensor) -> Tensor | None:
        """`(tokens, size)`, the state that earlier exits imitate; `None` if it is `features`."""
        return None

    def imitated(self, hidden: Tensor) -> Tensor | None:
        """`(tokens, later exits, size)`, the exit's estimates of later exits' states; `None` if it has none."""
        return None

    def weight(self, output_weight: Tensor) -> Tensor:
        """`(vocabulary, size)`; by default `output_weight`, the decoder's own matrix, which the head does not own."""
        return output_weight

    def features_macs(self) -> int:
        """Multiply-accumulates of `features` for a token."""
        return 0


def copied_norm(norm: torch.nn.LayerNorm) -> torch.nn.LayerNorm:
    """A layer normalisation initialized from `norm`."""
    copy = torch.nn.LayerNorm(norm.normalized_shape, eps=norm.eps)
    copy.load_state_dict(norm.state_dict())
    return copy


def identity(size: int) -> torch.nn.Linear:
    """A linear layer initialized to the identity."""
    linear = torch.nn.Linear(size, size)
    torch.nn.init.eye_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    return linear
