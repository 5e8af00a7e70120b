"""Starting a captured graph of decoding, and waiting for what it says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from beem_plugin.decoding.row_store import RowStore

LOOKS = 100_000
"""Looks at pinned memory before the clock is asked how long it has been."""
PATIENCE_SECONDS = 2.0
NOT_THERE = -1
"""As a whole number: a network may say NaN, but not the one that looks like this."""


@dataclass
class Launch:
    """
    A graph that is ready to be started.

    # Parameters

    start : `Callable[[], None]`
    table : `np.ndarray`
        `(3, slots)` int64, pinned: see `Slots`.
    seen : `np.ndarray`
        `(slots, 3)` float64, pinned: see `word_decision.ANSWER`.
    says : `bool`
        Whether the answers hold words.
    head_macs : `float`
        Multiply-accumulates of heads, a row.
    wait : `Callable[[], None]`
        Until all that was queued is done.
    held : `tuple[Any, ...]`
        What the graph reads and writes, which would be given away otherwise.
    """

    start: Callable[[], None]
    table: np.ndarray
    seen: np.ndarray
    says: bool
    head_macs: float
    wait: Callable[[], None]
    held: tuple[Any, ...]

    def run(self, rows: np.ndarray, positions: np.ndarray | int, store: RowStore) -> None:
        """Starts it for these words. Answers of an earlier start must have been read, or not be wanted."""
        count = len(rows)
        table = self.table
        table[0, :count] = rows
        table[1, :count] = positions
        table[2, :count] = table[0, :count] * store.max_tokens + positions
        table[:, count:] = store.spare_word
        self.seen.view(np.int64).fill(NOT_THERE)
        self.start()

    def answers(self, count: int) -> np.ndarray:
        """`(count, 3)` when all of them are there."""
        wanted = self.seen[:count]
        as_numbers = wanted.view(np.int64)
        look_until(lambda: not (as_numbers == NOT_THERE).any(), self.wait)
        return wanted.copy()


def look_until(ready: Callable[[], bool], wait: Callable[[], None]) -> None:
    """Looks at pinned memory until `ready`, or until `wait` has returned: nothing is queued any more then."""
    deadline: float | None = None
    while True:
        for _ in range(LOOKS):
            if ready():
                return
        now = time.monotonic()
        deadline = now + PATIENCE_SECONDS if deadline is None else deadline
        if now > deadline:  # the queue is stuck, which waiting tells
            wait()
            return
