"""Samples without padding, one after the other: what is computed token by token need not know where each begins."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones.block_kernels import block_of

PACKED = "packed"
"""The name in `BackboneState.shared`. Hidden states are `(1, tokens of all samples, hidden)` then."""


@dataclass
class Packed:
    """
    # Parameters

    starts, lengths : `Tensor`
        `(samples,)` int64 on the device of the hidden states: each sample's first token, and how many it has.
    lengths_here : `np.ndarray`
        `(samples,)` int64: `lengths` on the host, rising.
    """

    starts: Tensor
    lengths: Tensor
    lengths_here: np.ndarray
    groups: list[tuple[int, int, int]] = field(init=False)
    """First sample, the one after the last, and the tokens that all of them have at most: see `block_of`."""

    def __post_init__(self) -> None:
        self.groups = []
        first, count = 0, len(self.lengths_here)
        while first < count:
            block = block_of(int(self.lengths_here[first]))
            last = int(np.searchsorted(self.lengths_here, block, side="right"))
            self.groups.append((first, last, block))
            first = last

    def __len__(self) -> int:
        return len(self.lengths_here)

    @property
    def longest(self) -> int:
        return int(self.lengths_here[-1])

    def padded(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """`(samples, longest, hidden)` of `(1, tokens, hidden)`, and `(samples, longest)` bool: which are real."""
        place = torch.arange(self.longest, device=hidden_states.device)
        real = place < self.lengths[:, None]
        rows = torch.where(real, self.starts[:, None] + place, 0)
        return hidden_states[0][rows], real
