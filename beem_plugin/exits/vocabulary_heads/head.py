"""The contract of the heads over a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.registry import Registrable

Memory = Mapping[str, Tensor]
"""What the exits before one have left for it, the tokens first."""


class VocabularyHead(torch.nn.Module, Registrable):
    """
    An exit over a vocabulary in two parts: `features` of a hidden state, and a matrix `weight` with a row a word. The
    logits are their product. Kept apart, so that a loss can go over the words chunk by chunk, and an exit can look at
    some candidate words only.

    Constructed with `norm`, the decoder's final layer normalisation, and `output_weight`, its `(words, hidden)` matrix,
    from which a head is initialised; and with `exit_number` and `num_exits`, if it takes them. The last exit is no such
    head, but the decoder's own output.
    """

    default_implementation = "tied"

    remembers: ClassVar[bool] = False
    """Whether it looks at what `memory_after` of the exits before it has left, whether or not they were asked."""

    def join(self, heads: Sequence[VocabularyHead]) -> None:
        """Called once with the heads of all exits but the last, in order, for what they share."""

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        """`(tokens, hidden)` to `(tokens, size)`."""
        raise TypeError(f"{type(self).__name__} does not define features")

    def memory_after(self, hidden: Tensor, memory: Memory) -> dict[str, Tensor]:
        """What the next exit finds in its memory of this one's."""
        return {}

    def state(self, hidden: Tensor) -> Tensor | None:
        """`(tokens, size)`, what earlier exits imitate where that is not `features`."""
        return None

    def imitated(self, hidden: Tensor) -> Tensor | None:
        """`(tokens, later exits, size)`, the exit's estimates of later exits' states; `None` for heads without any."""
        return None

    def weight(self, output_weight: Tensor) -> Tensor:
        """`(words, size)`; `output_weight` is the decoder's own, which the head does not hold."""
        raise TypeError(f"{type(self).__name__} does not define weight")

    def features_macs(self) -> int:
        """Multiply-accumulates of `features` for a token."""
        return 0


def copied_norm(norm: torch.nn.LayerNorm) -> torch.nn.LayerNorm:
    """A layer normalisation that starts as `norm`."""
    copy = torch.nn.LayerNorm(norm.normalized_shape, eps=norm.eps)
    copy.load_state_dict(norm.state_dict())
    return copy
