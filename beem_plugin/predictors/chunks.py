"""A stream of inputs in chunks that are tokenized and handed over together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from beem_plugin.common.errors import BeemError

Item = TypeVar("Item")

BATCHES_PER_CHUNK = 64
"""Many, so that the tokenizer keeps all cores busy and the engine has similar lengths to put together."""


def chunks(items: Iterable[Item], batch_size: int) -> Iterator[list[Item]]:
    """
    The first chunks are small, so that the first predictions come soon: 1, 2, 4, ... batches. The items before an error
    form a chunk of their own.
    """
    items = iter(items)
    for size in chunk_sizes(batch_size):
        part: list[Item] = []
        try:
            for item in islice(items, size):
                part.append(item)
        except BeemError:
            if part:
                yield part
            raise
        if not part:
            return
        yield part


def chunk_sizes(batch_size: int) -> Iterator[int]:
    """Of all chunks but the last, which is smaller."""
    batches = 1
    while True:
        yield batches * batch_size
        batches = min(2 * batches, BATCHES_PER_CHUNK)


class UntilError(Iterable[Item]):
    """
    Iterates over `items` and ends at an error of the user's data, which `raise_error` then raises: an engine that reads
    ahead is to finish what came before it.
    """

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = items
        self._error: BeemError | None = None

    def __iter__(self) -> Iterator[Item]:
        try:
            yield from self._items
        except BeemError as error:
            self._error = error

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error
