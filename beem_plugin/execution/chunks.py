"""The input in windows, and their samples in chunks that are computed together: without padding in this file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.common.transfer import to_device
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.kernels.packed import Packed


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
    """The kept samples `first` to `last - 1`, of one chunk; `rows` `(kept,)` int64 on the device: places in it."""

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


class PackedLayout:
    def __init__(self, network: CompiledNetwork, tokens_per_chunk: int) -> None:
        self.backbone, self.tokens_per_chunk = network.backbone, tokens_per_chunk

    def first(self, samples: RaggedBatch) -> Iterator[Chunk]:
        device = samples.tokens["input_ids"].device
        starts, lengths = to_device(samples.starts, device), samples.lengths.numpy()
        for first, last in divide(lengths, self.tokens_per_chunk):
            packed = Packed.of(lengths[first:last], device)
            index = packed.indices(starts[first:last])
            tokens = {name: value.index_select(0, index) for name, value in samples.tokens.items()}
            yield Chunk(self.backbone.embed_packed(tokens, packed), samples.lengths[first:last])

    def repack(self, chunks: Sequence[Chunk], kept: Tensor, kept_on_device: Tensor) -> Iterator[Chunk]:
        """Each hidden state is copied once, into one tensor of which the new chunks are slices."""
        lengths = torch.cat([chunk.lengths for chunk in chunks])[kept].numpy()
        like = chunks[0].state.hidden_states
        ends = lengths.cumsum()
        hidden = like.new_empty((int(ends[-1]), like.shape[2]))
        for piece in pieces_of(chunks, kept, kept_on_device):
            target = hidden[ends[piece.first] - lengths[piece.first] : ends[piece.last - 1]]
            old = piece.chunk.state
            if len(piece.rows) == len(piece.chunk):
                target.copy_(old.hidden_states[0])
                continue
            assert old.packed is not None, "chunks of this layout are packed"
            packed = Packed.of(lengths[piece.first : piece.last], like.device)
            index = packed.indices(old.packed.starts.index_select(0, piece.rows))
            torch.index_select(old.hidden_states[0], 0, index, out=target)
        for first, last in divide(lengths, self.tokens_per_chunk):
            packed = Packed.of(lengths[first:last], like.device)
            part = hidden[ends[first] - lengths[first] : ends[last - 1]]
            yield Chunk(self.backbone.packed_state(part[None], packed), torch.from_numpy(lengths[first:last]))


def divide(lengths: np.ndarray, tokens_per_chunk: int) -> list[tuple[int, int]]:
    """Chunks of about equally many tokens."""
    ends = lengths.cumsum()
    count = max(1, round(int(ends[-1]) / tokens_per_chunk))
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count)
    cuts = [0, *np.unique(edges[(edges > 0) & (edges < len(lengths))]).tolist(), len(lengths)]
    return list(zip(cuts, cuts[1:]))


def windows(
    batches: Iterable[RaggedBatch],
    max_tokens: int,
    first_tokens: int | None = None,
    growth: int = 2,
    pinned: bool = False,
) -> Iterator[RaggedBatch]:
    """Parts of the input of at most `max_tokens` tokens, but a sample at least: batches joined or divided."""
    limit = min(max_tokens, first_tokens or max_tokens)
    held: list[RaggedBatch] = []
    tokens = 0
    for batch in batches:
        for part in divided(batch, limit):
            more = int(part.lengths.sum())
            if held and tokens + more > limit:
                yield RaggedBatch.join(held, pinned)
                held, tokens, limit = [], 0, min(max_tokens, growth * limit)
            held.append(part)
            tokens += more
    if held:
        yield RaggedBatch.join(held, pinned)


def divided(batch: RaggedBatch, max_tokens: int) -> Iterator[RaggedBatch]:
    """`batch` in parts of at most `max_tokens` tokens, but at least one sample."""
    ends = batch.lengths.cumsum(0)
    first = 0
    while first < len(batch):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(torch.searchsorted(ends, before + max_tokens, right=True)))
        yield batch if last - first == len(batch) else batch.narrow(first, last)
        first = last
