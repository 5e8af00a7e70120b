"""Token ids of many samples in one flat tensor: what the engines take."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from beem_plugin.common.transfer import all_to_device, to_device

TOKEN_FIELDS = ("input_ids", "token_type_ids", "words")
"""The latter two where the encoder has types, and of tagged words: 1 at the first token of each."""


@dataclass
class RaggedBatch:
    """Token ids of samples, one after the other, without padding; all but the tokens lie on the CPU."""

    tokens: dict[str, Tensor]  # `TOKEN_FIELDS`, each (all tokens,) int64, some of which may be unused
    starts: Tensor  # (samples,) int64, as the following: where each sample begins in `tokens`
    lengths: Tensor  # its tokens, 1 or more
    index: Tensor  # its position in the input
    pad_token_id: int = 0

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def from_columns(
        cls, columns: Mapping[str, Sequence[Sequence[int]]], pad_token_id: int = 0, position: int = 0
    ) -> RaggedBatch:
        """From a list of ids a sample for `input_ids` and others of `TOKEN_FIELDS`; `index` counts from `position`."""
        lengths = np.fromiter(map(len, columns["input_ids"]), dtype=np.int64)
        total = int(lengths.sum())
        tokens = {
            name: np.fromiter(itertools.chain.from_iterable(values), dtype=np.int64, count=total)
            for name, values in columns.items()
        }
        return cls.from_arrays(tokens, lengths, pad_token_id, position)

    @classmethod
    def from_arrays(
        cls, tokens: Mapping[str, np.ndarray], lengths: np.ndarray, pad_token_id: int = 0, position: int = 0
    ) -> RaggedBatch:
        """Samples of these `lengths` that follow each other in `tokens`; `index` counts from `position`."""
        flat = {name: torch.from_numpy(values.astype(np.int64, copy=False)) for name, values in tokens.items()}
        found = torch.from_numpy(lengths)
        return cls(flat, found.cumsum(0) - found, found, torch.arange(position, position + len(found)), pad_token_id)

    @classmethod
    def join(cls, parts: Sequence[RaggedBatch], pinned: bool = False) -> RaggedBatch:
        """All samples of one or more `parts`, their tokens on the CPU; pinned memory is for copies to a GPU."""
        if len(parts) == 1 and not pinned:
            return parts[0]
        tokens = {}
        for name in dict.fromkeys(name for part in parts for name in part.tokens):
            # A part without token types has the first type throughout.
            values = [part.tokens.get(name, torch.zeros_like(part.tokens["input_ids"])) for part in parts]
            total = sum(len(value) for value in values)
            tokens[name] = torch.cat(values, out=torch.empty(total, dtype=values[0].dtype, pin_memory=pinned))
        offsets = itertools.accumulate((len(part.tokens["input_ids"]) for part in parts), initial=0)
        starts = torch.cat([part.starts + offset for part, offset in zip(parts, offsets)])
        lengths, index = (torch.cat([getattr(part, name) for part in parts]) for name in ("lengths", "index"))
        return cls(tokens, starts, lengths, index, parts[0].pad_token_id)

    def select(self, rows: Tensor) -> RaggedBatch:
        """The samples at `rows`, `(selected,)` int64, in that order. Tokens are shared, not copied."""
        return RaggedBatch(self.tokens, self.starts[rows], self.lengths[rows], self.index[rows], self.pad_token_id)

    def narrow(self, first: int, last: int) -> RaggedBatch:
        """Samples `first` to `last - 1` with no more of the tokens than they span."""
        starts, lengths = self.starts[first:last], self.lengths[first:last]
        begin, end = int(starts.min()), int((starts + lengths).max())
        tokens = {name: value[begin:end] for name, value in self.tokens.items()}
        return RaggedBatch(tokens, starts - begin, lengths, self.index[first:last], self.pad_token_id)

    def rows(self) -> list[dict[str, list[int]]]:
        """A dictionary a sample: lists of ids, and the `attention_mask`."""
        spans = list(zip(self.starts.tolist(), (self.starts + self.lengths).tolist(), strict=True))
        columns = {name: value.tolist() for name, value in self.tokens.items()}
        return [
            {name: ids[first:last] for name, ids in columns.items()} | {"attention_mask": [1] * (last - first)}
            for first, last in spans
        ]

    def to(self, device: torch.device) -> RaggedBatch:
        """The same samples with their tokens on `device`."""
        moved = {name: to_device(value, device) for name, value in self.tokens.items()}
        return RaggedBatch(moved, self.starts, self.lengths, self.index, self.pad_token_id)

    def padded(
        self, first: int = 0, last: int | None = None, length: int | None = None, always_mask: bool = False
    ) -> dict[str, Tensor]:
        """
        Samples `first` to `last - 1` padded on the right, by default to the longest, on the device of the
        tokens. There is an `attention_mask`, `(samples, length)` bool, where something is padding or if
        `always_mask`.
        """
        lengths, starts = self.lengths[first:last], self.starts[first:last]
        longest = int(lengths.max()) if length is None else length
        is_full = int(lengths.min()) == longest and not always_mask
        if is_full and len(lengths) == 1:
            start = int(starts[0])
            return {name: value[start : start + longest][None] for name, value in self.tokens.items()}
        device = self.tokens["input_ids"].device
        position = torch.arange(longest, device=device)
        starts, lengths = all_to_device((starts, lengths), device)
        where = starts[:, None] + position
        if is_full:
            return {name: value[where] for name, value in self.tokens.items()}
        real = position < lengths[:, None]
        where = torch.where(real, where, 0)
        padded = {
            name: value[where].masked_fill_(~real, self.pad_token_id if name == "input_ids" else 0)
            for name, value in self.tokens.items()
        }
        return {**padded, "attention_mask": real}
