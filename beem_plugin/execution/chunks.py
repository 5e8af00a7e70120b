"""Samples of a window that are computed together, with padding or packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.data.ragged_batch import RaggedBatch


@dataclass
class Chunk:
    """Samples that are computed together; `lengths` `(chunk,)` int64 on the CPU ascend."""

    state: BackboneState
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.lengths)


class Layout(Protocol):
    """How the samples of a window are divided into chunks. Chunks are made when they are iterated."""

    def first(self, samples: RaggedBatch) -> Iterator[Chunk]:
        """Chunks of samples that are sorted by length, with their tokens on the network's device."""

    def repack(self, chunks: Sequence[Chunk], kept: Tensor, kept_on_device: Tensor) -> Iterator[Chunk]:
        """New chunks of the samples `kept`, `(kept,)` int64, ascending: positions among the samples of all chunks."""


@dataclass
class Piece:
    """
    The kept samples of one chunk: `first` to `last - 1` among all kept samples; `rows` `(last - first,)` int64 on the
    device are their positions in the chunk.
    """

    chunk: Chunk
    first: int
    last: int
    rows: Tensor

    def part(self, first: int, last: int) -> Piece | None:
        """Those between `first` and `last - 1` among all kept samples; `None` if there are none."""
        start, stop = max(first, self.first), min(last, self.last)
        if start >= stop:
            return None
        return Piece(self.chunk, start, stop, self.rows[start - self.first : stop - self.first])


def pieces_of(chunks: Sequence[Chunk], kept: Tensor, kept_on_device: Tensor) -> list[Piece]:
    """The kept samples, chunk by chunk; see `Layout.repack`."""
    ends = torch.tensor([len(chunk) for chunk in chunks]).cumsum(0)
    borders = [0, *torch.searchsorted(kept, ends).tolist()]
    return [
        Piece(chunk, first, last, kept_on_device[first:last] - (end - len(chunk)))
        for chunk, end, first, last in zip(chunks, ends.tolist(), borders, borders[1:], strict=False)
        if first < last
    ]
