"""The contract of the heads over a vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.common.registry import Registrable


class VocabularyHead(torch.nn.Module, Registrable):
    """
    An exit over a vocabulary in two parts: `features` of a hidden state, and a matrix `weight` with a row a word. The
    logits are their product. Kept apart, so that a loss can go over the words chunk by chunk, and an exit can look at
    some candidate words only.

    Constructed with `norm`, the decoder's final layer normalisation, and `output_weight`, its `(words, hidden)` matrix,
    from which a head is initialised.
    """

    default_implementation = "tied"

    def features(self, hidden: Tensor) -> Tensor:
        """`(tokens, hidden)` to `(tokens, size)`."""
        raise TypeError(f"{type(self).__name__} does not define features")

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
