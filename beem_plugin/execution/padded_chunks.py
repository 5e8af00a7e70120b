"""Chunks with padding, which serve every network."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.common.transfer import to_device
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.chunks import Chunk, Piece, pieces_of
from beem_plugin.execution.compiled.network import CompiledNetwork

MAX_GROUPS = 24
"""Different lengths that `plan` considers. Neighbouring ones are grouped, so that planning costs less than a layer."""


class PaddedLayout:
    def __init__(self, network: CompiledNetwork, tokens_per_chunk: int, call_tokens: int) -> None:
        self.network, self.tokens_per_chunk, self.call_tokens = network, tokens_per_chunk, call_tokens

    def first(self, samples: RaggedBatch) -> Iterator[Chunk]:
        for first, last in plan(samples.lengths, self.tokens_per_chunk, self.call_tokens):
            yield Chunk(self.network.embed(samples.padded(first, last)), samples.lengths[first:last])

    def repack(self, chunks: Sequence[Chunk], kept: Tensor, kept_on_device: Tensor) -> Iterator[Chunk]:
        """Each hidden state is copied once; a chunk that stays whole is not copied."""
        lengths = torch.cat([chunk.lengths for chunk in chunks])[kept]
        lengths_on_device = to_device(lengths, kept_on_device.device)
        pieces = pieces_of(chunks, kept, kept_on_device)
        for first, last in plan(lengths, self.tokens_per_chunk, self.call_tokens):
            parts = [part for piece in pieces if (part := piece.part(first, last)) is not None]
            if len(parts) == 1 and len(parts[0].rows) == len(parts[0].chunk):
                yield parts[0].chunk
            else:
                yield self._joined(parts, lengths[first:last], lengths_on_device[first:last])

    def _joined(self, parts: Sequence[Piece], lengths: Tensor, lengths_on_device: Tensor) -> Chunk:
        longest = int(lengths[-1])
        like = parts[0].chunk.state.hidden_states
        hidden = like.new_empty((len(lengths), longest, like.shape[2]))
        start = 0
        for part in parts:
            old = part.chunk.state.hidden_states
            target = hidden[start : start + len(part.rows)]
            width = min(old.shape[1], longest)
            if old.shape[1] == longest and old.is_contiguous():
                # One-dimensional rows are copied with wide loads.
                torch.index_select(old.view(len(old), -1), 0, part.rows, out=target.view(len(part.rows), -1))
            else:
                target[:, :width] = old[:, :width].index_select(0, part.rows)
                target[:, width:] = 0  # padding may hold anything finite
            start += len(part.rows)
        mask = None
        if int(lengths[0]) < longest:
            mask = torch.arange(longest, device=hidden.device) < lengths_on_device[:, None]
        state = self.network.backbone.make_state(hidden, mask)
        carry_over(state, parts, longest, getattr(self.network.backbone, "token_dims", {}))
        return Chunk(state, lengths)


def plan(lengths: Tensor, tokens_per_chunk: int, call_tokens: int = 0) -> list[tuple[int, int]]:
    """
    Divides samples, sorted by length, where that costs least: a chunk costs its tokens, padding included, and
    `call_tokens`, the fixed price of a layer call as the number of tokens that are computed in the same time. A few
    long samples among many short ones get a chunk of their own; none has many more tokens than `tokens_per_chunk`.
    `lengths` `(samples,)` int64 on the CPU ascend. Returns the first sample of each chunk and the one after its last.
    """
    kinds, counts = torch.unique_consecutive(lengths, return_counts=True)
    ends = counts.cumsum(0)
    if len(kinds) > MAX_GROUPS:
        chosen = torch.linspace(0, len(kinds) - 1, MAX_GROUPS + 1).round().long()[1:]
        kinds, ends = kinds[chosen], ends[chosen]
    sizes = kinds.numpy().astype(np.float64)
    before = np.concatenate([[0], ends.numpy()]).astype(np.float64)  # samples shorter than length k
    best = np.zeros(len(sizes) + 1)
    cut = np.zeros(len(sizes) + 1, dtype=np.int64)
    for kind in range(1, len(sizes) + 1):
        # The cost of chunks that hold the lengths from k up to this one, for every k.
        tokens = (before[kind] - before[:kind]) * sizes[kind - 1]
        calls = np.maximum(np.round(tokens / tokens_per_chunk), 1)
        cost = best[:kind] + tokens + call_tokens * calls
        cut[kind] = int(cost.argmin())
        best[kind] = cost[cut[kind]]
    chunks: list[tuple[int, int]] = []
    kind = len(sizes)
    while kind > 0:
        first, last = int(before[cut[kind]]), int(before[kind])
        parts = min(last - first, max(1, round((last - first) * sizes[kind - 1] / tokens_per_chunk)))
        edges = [first + (last - first) * part // parts for part in range(parts + 1)]
        chunks[:0] = zip(edges, edges[1:])
        kind = int(cut[kind])
    return chunks


def carry_over(
    state: BackboneState, parts: Sequence[Piece], longest: int, of_backbone: Mapping[str, tuple[int, ...]]
) -> None:
    """Copies the per-sample tensors that the network, not the backbone, keeps in the state, such as exit memories."""
    like = parts[0].chunk.state
    for name in like.batched:
        if name in of_backbone or name in state.batched:
            continue
        if name in like.token_dims:
            state.token_dims = {**state.token_dims, name: like.token_dims[name]}
        values = []
        for part in parts:
            value = part.chunk.state.batched[name].index_select(0, part.rows)
            for dim in part.chunk.state.token_dims.get(name, ()):
                value = resized(value, dim, longest)
            values.append(value)
        state.batched[name] = torch.cat(values)


def resized(tensor: Tensor, dim: int, length: int) -> Tensor:
    """`tensor` with dimension `dim` cut or zero-padded to `length`."""
    size = tensor.shape[dim]
    if size >= length:
        return tensor.narrow(dim, 0, length)
    shape = list(tensor.shape)
    shape[dim] = length - size
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)
