"""The layout of packed samples: one after the other, without padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Packed:
    """
    Where each sample lies in hidden states `(1, tokens of all samples, hidden)`: `cu_seqlens` `(samples + 1,)` int64,
    on the device of the hidden states, are cumulative lengths, from 0; `lengths` `(samples,)` int64, on the host,
    ascend.
    """

    cu_seqlens: Tensor
    lengths: np.ndarray

    @classmethod
    def of(cls, lengths: np.ndarray, device: torch.device) -> Packed:
        """The layout of samples of these lengths, which must be ascending."""
        cu_seqlens = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
        if device.type == "cuda":
            cu_seqlens = cu_seqlens.pin_memory().to(device, non_blocking=True)
        return cls(cu_seqlens, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return int(self.lengths[-1])

    @property
    def starts(self) -> Tensor:
        """`(samples,)` int64: position of each sample's first token."""
        return self.cu_seqlens[:-1]

    @cached_property
    def tokens(self) -> int:
        """Number of tokens of all samples."""
        return int(self.lengths.sum())

    @cached_property
    def sample_of_token(self) -> Tensor:
        """`(tokens,)` int64: the sample that each token belongs to."""
        # With the number of tokens given, the host does not wait for the device.
        return torch.repeat_interleave(self.cu_seqlens.diff(), output_size=self.tokens)

    @cached_property
    def positions(self) -> Tensor:
        """`(tokens,)` int64: position of each token in its sample, from 0."""
        return torch.arange(self.tokens, device=self.cu_seqlens.device) - self.starts[self.sample_of_token]

    def indices(self, starts: Tensor) -> Tensor:
        """`(tokens,)` int64: the place of each token in a tensor whose samples begin at `starts` `(samples,)` int64."""
        return self.positions + starts[self.sample_of_token]

    def padded(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """`(samples, longest, hidden)` from `(1, tokens, hidden)`, and its attention mask `(samples, longest)` bool."""
        position = torch.arange(self.longest, device=hidden_states.device)
        mask = position < self.cu_seqlens.diff()[:, None]
        return hidden_states[0][torch.where(mask, self.starts[:, None] + position, 0)], mask
