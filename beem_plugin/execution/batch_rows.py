"""Which samples of a batch a captured graph computes: graphs are made for some numbers of rows only."""

from __future__ import annotations

import numpy as np

from beem_plugin.common.kernel_launch import power_of_two

LENGTH_BUCKET = 16
"""Captured lengths are multiples of this."""
LEAST_ROWS = 4
"""A batch does not shrink below: fewer rows take a GPU no less time."""
FINE_TOKENS = 2048
"""With more tokens a GPU's time grows with them, so that there is a number of rows between two powers of 2."""


def rows_for(samples: int, length: int) -> int:
    """How many rows a graph has that serves so many samples of so many tokens: a power of 2, or 3/4 of one."""
    most = power_of_two(samples)
    fewer = 3 * most // 4
    return fewer if samples <= fewer and fewer * length > FINE_TOKENS else most


def length_for(tokens: int, longest: int | None) -> int:
    """How many tokens samples of so many are padded to, where the network takes at most `longest`."""
    length = -(-tokens // LENGTH_BUCKET) * LENGTH_BUCKET
    return length if longest is None else max(tokens, min(length, longest))


class Rows:
    """
    The samples of a batch that are computed. Where they are fewer than a graph has rows, it also computes samples that
    have left, or rows that hold none, whose results nobody looks at; none is named twice.

    # Parameters

    samples : `int`
        Of the batch; they lie in rows 0, 1, ...
    length : `int`
        Their tokens, padding included.
    min_leaving : `float`, optional (default = `0.0`)
        See `Compaction`.
    """

    def __init__(self, samples: int, length: int, min_leaving: float = 0.0) -> None:
        self.samples, self.length, self.min_leaving = samples, length, min_leaving
        self.slots = np.arange(rows_for(samples, length))
        self.running = samples
        """The samples among `slots` that had not left when these were chosen."""

    def __len__(self) -> int:
        return len(self.slots)

    def take_out(self, left: np.ndarray) -> bool:
        """
        Chooses fewer rows if those that stay fit into them.

        # Parameters

        left : `np.ndarray`
            One number a row of the buffers: not 0 for the samples that have left.

        # Returns

        `bool`
            Whether anybody stays.
        """
        stays = (self.slots < self.samples) & (left[self.slots] == 0)
        staying = int(np.count_nonzero(stays))
        if staying == 0:
            return False
        fewer = max(rows_for(staying, self.length), LEAST_ROWS)
        if fewer < len(self.slots) and self.running - staying >= self.min_leaving * self.running:
            self.slots = np.concatenate([self.slots[stays], self.slots[~stays][: fewer - staying]])
            self.running = staying
        return True
