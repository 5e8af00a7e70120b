"""The samples of a pool in full batches, formed anew from whoever is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.common.transfer import all_to_device
from beem_plugin.data.ragged_batch import RaggedBatch

MAX_KINDS = 24


@dataclass
class Chunk:
    """
    Samples that are computed together.

    # Parameters

    state : `BackboneState`
    lengths : `Tensor`
        `(chunk,)` int64 on the CPU, rising.
    """

    state: BackboneState
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.lengths)


def plan(lengths: Tensor, tokens_per_chunk: int, call_tokens: int = 0) -> list[tuple[int, int]]:
    """
    Cuts samples, sorted by length, where that costs least: a chunk costs its tokens, padding included, and the fixed
    price of a layer call; none has much more than `tokens_per_chunk`. Few long samples among many short ones thus get a
    chunk of their own.

    # Parameters

    lengths : `Tensor`
        `(samples,)` int64 on the CPU, rising, one or more.
    tokens_per_chunk : `int`
    call_tokens : `int`, optional (default = `0`)
        How many tokens could be computed in the time that a call takes for itself.

    # Returns

    `list[tuple[int, int]]`
        First sample of each chunk and the one after its last.
    """
    kinds, counts = torch.unique_consecutive(lengths, return_counts=True)
    ends = counts.cumsum(0)
    if len(kinds) > MAX_KINDS:  # neighbouring lengths as one, padded to the longest: a plan must cost less than a layer
        chosen = torch.linspace(0, len(kinds) - 1, MAX_KINDS + 1).round().long()[1:]
        kinds, ends = kinds[chosen], ends[chosen]
    sizes = kinds.numpy().astype(np.float64)
    before = np.concatenate([[0], ends.numpy()]).astype(np.float64)  # samples shorter than kind k
    best = np.zeros(len(sizes) + 1)
    cut = np.zeros(len(sizes) + 1, dtype=np.int64)
    for kind in range(1, len(sizes) + 1):
        # One run of chunks from kind k up to this one, for every k.
        tokens = (before[kind] - before[:kind]) * sizes[kind - 1]
        calls = np.maximum(np.round(tokens / tokens_per_chunk), 1)
        cost = best[:kind] + tokens + call_tokens * calls
        cut[kind] = int(cost.argmin())
        best[kind] = cost[cut[kind]]
    stretches: list[tuple[int, int]] = []
    kind = len(sizes)
    while kind > 0:
        first, last = int(before[cut[kind]]), int(before[kind])
        parts = min(last - first, max(1, round((last - first) * sizes[kind - 1] / tokens_per_chunk)))
        edges = [first + (last - first) * part // parts for part in range(parts + 1)]
        stretches[:0] = zip(edges, edges[1:])
        kind = int(cut[kind])
    return stretches


def first_chunks(network: Any, samples: RaggedBatch, tokens_per_chunk: int, call_tokens: int = 0) -> Iterator[Chunk]:
    """The embedded samples; they are sorted by length, their tokens on the network's device."""
    for first, last in plan(samples.lengths, tokens_per_chunk, call_tokens):
        yield Chunk(network.embed(samples.padded(first, last)), samples.lengths[first:last])


def form_anew(
    backbone: Any,
    chunks: Sequence[Chunk],
    kept: Tensor,
    tokens_per_chunk: int,
    call_tokens: int = 0,
    kept_here: Tensor | None = None,
    lengths_here: Tensor | None = None,
) -> Iterator[Chunk]:
    """
    Full chunks of the samples that stay. Each hidden state is copied once; a chunk that stays whole is not copied.

    # Parameters

    backbone : `Backbone`
    chunks : `Sequence[Chunk]`
    kept : `Tensor`
        `(kept,)` int64 on the CPU, rising: places among the samples of all chunks, one or more.
    tokens_per_chunk, call_tokens : `int`
        As in `plan`.
    kept_here, lengths_here : `Tensor`, optional
        `kept`, and the lengths of those kept, on the chunks' device, where they are there already.
    """
    lengths = torch.cat([chunk.lengths for chunk in chunks])[kept]
    if kept_here is None or lengths_here is None:
        kept_here, lengths_here = all_to_device((kept, lengths), chunks[0].state.hidden_states.device)
    ends = torch.tensor([len(chunk) for chunk in chunks]).cumsum(0)
    # borders[c]: how many of the kept come before the end of old chunk c
    borders = [0, *torch.searchsorted(kept, ends).tolist()]
    for first, last in plan(lengths, tokens_per_chunk, call_tokens):
        pieces = []
        for number, chunk in enumerate(chunks):
            start, stop = max(first, borders[number]), min(last, borders[number + 1])
            if start < stop:
                pieces.append((chunk, kept_here[start:stop] - (int(ends[number]) - len(chunk))))
        yield assemble(backbone, pieces, lengths[first:last], lengths_here[first:last])


def assemble(backbone: Any, pieces: Sequence[tuple[Chunk, Tensor]], lengths: Tensor, lengths_here: Tensor) -> Chunk:
    """
    # Parameters

    backbone : `Backbone`
    pieces : `Sequence[tuple[Chunk, Tensor]]`
        Chunks and the rows wanted of them, `(rows,)` int64 on their device.
    lengths : `Tensor`
        `(all rows,)` int64 on the CPU, rising.
    lengths_here : `Tensor`
        The same on the chunks' device.
    """
    longest = int(lengths[-1])
    chunk, rows = pieces[0]
    if len(pieces) == 1 and len(rows) == len(chunk):
        return chunk
    like = chunk.state.hidden_states
    hidden = like.new_empty((len(lengths), longest, like.shape[2]))
    start = 0
    for chunk, rows in pieces:
        old = chunk.state.hidden_states
        target = hidden[start : start + len(rows)]
        width = min(old.shape[1], longest)
        if old.shape[1] == longest and old.is_contiguous():
            # As rows of one dimension, which are copied in wide steps.
            torch.index_select(old.view(len(old), -1), 0, rows, out=target.view(len(rows), -1))
        elif width == longest:
            torch.index_select(old[:, :longest], 0, rows, out=target)
        else:
            target[:, :width] = old.index_select(0, rows)
            target[:, width:] = 0  # padding may hold anything finite
        start += len(rows)
    mask = None
    if int(lengths[0]) < longest:
        mask = torch.arange(longest, device=hidden.device) < lengths_here[:, None]
    state = backbone.make_state(hidden, mask)
    keep_extras(state, pieces, longest, getattr(backbone, "token_dims", {}))
    return Chunk(state, lengths)


def keep_extras(state: BackboneState, pieces: Sequence[tuple[Chunk, Tensor]], longest: int, known: Any) -> None:
    """Carries over what the network, not the backbone, keeps of each sample in the state."""
    like = pieces[0][0].state
    for name in like.batched:
        if name in known or name in state.batched:
            continue
        if name in like.token_dims:
            state.token_dims = {**state.token_dims, name: like.token_dims[name]}
        parts = []
        for chunk, rows in pieces:
            part = chunk.state.batched[name].index_select(0, rows)
            for dim in chunk.state.token_dims.get(name, ()):
                part = fit(part, dim, longest)
            parts.append(part)
        state.batched[name] = torch.cat(parts)


def fit(tensor: Tensor, dim: int, length: int) -> Tensor:
    """`tensor` with `dim` cut or padded with zeros to `length`."""
    size = tensor.shape[dim]
    if size >= length:
        return tensor.narrow(dim, 0, length)
    shape = list(tensor.shape)
    shape[dim] = length - size
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)
