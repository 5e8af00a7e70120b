"""The input in windows: samples that are processed together, sorted by length."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
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


@dataclass
class SortedWindow:
    """
    `samples` sorted by length, their tokens on the device; `order` `(samples,)` int64 says which sample of the window
    each is; `index` `(samples,)` int64 are positions in the input, as the samples were read.
    """

    index: Tensor
    order: Tensor
    samples: RaggedBatch

    def in_input_order(self, decisions: ExitDecisions) -> ExitDecisions:
        """The decisions about `samples`, in the order of `index`."""
        return decisions[self.order.argsort()]


def sorted_windows(read: Iterable[RaggedBatch], device: torch.device) -> Iterator[SortedWindow]:
    """The windows, sorted by length, with their tokens on `device`."""
    for window in read:
        order = window.lengths.argsort(stable=True)
        yield SortedWindow(window.index, order, window.select(order).to(device))
