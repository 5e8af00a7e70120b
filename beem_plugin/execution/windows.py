"""The input in stretches that are processed together, each sorted by length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from beem_plugin.data.ragged_batch import RaggedBatch


def windows(
    batches: Iterable[RaggedBatch],
    max_tokens: int,
    first_tokens: int | None = None,
    growth: int = 2,
    pinned: bool = False,
) -> Iterator[RaggedBatch]:
    """
    Successive parts of the input of at most `max_tokens` tokens, but at least one sample. Batches are joined, and
    divided if they are larger.

    # Parameters

    batches : `Iterable[RaggedBatch]`
    max_tokens : `int`
    first_tokens : `int`, optional (default = `max_tokens`)
        Limit of the first window. A small one lets computation begin before much input has been read.
    growth : `int`, optional (default = `2`)
        Factor by which the limit grows from window to window, up to `max_tokens`.
    pinned : `bool`, optional (default = `False`)
        See `RaggedBatch.join`.
    """
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


def sorted_windows(
    read: Iterable[RaggedBatch], device: torch.device
) -> Iterator[tuple[RaggedBatch, Tensor, RaggedBatch]]:
    """Each window as it was read, its order by length `(samples,)` int64, and sorted with its tokens on the device."""
    for window in read:
        order = window.lengths.argsort(stable=True)
        yield window, order, window.select(order).to(device)
