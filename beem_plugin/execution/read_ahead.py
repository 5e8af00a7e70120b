"""Items of an iterable, produced by a thread while earlier ones are processed."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
POLL_SECONDS = 0.05


class ReadAhead(Generic[Item], Iterator[Item]):
    """
    Iterates `items` in a thread of its own, and closes them there; up to `count` wait. Errors are raised where the item
    would have come. `stopped` ends the iteration once it is set: for the stages of a pipeline, where a stage waits in
    the thread of the next one and cannot be closed from outside.
    """

    def __init__(self, items: Iterable[Item], count: int = 1, stopped: threading.Event | None = None) -> None:
        self._queue: queue.Queue[tuple[str, object]] = queue.Queue(count)
        self._closed = threading.Event()
        self._stopped = self._closed if stopped is None else stopped
        self._ended = False
        self._thread = threading.Thread(target=self._read, args=(iter(items),), name="read ahead", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether `next` returns or raises without waiting."""
        return self._ended or not self._queue.empty()

    def __next__(self) -> Item:
        while not self._ended:
            try:
                kind, value = self._queue.get(timeout=POLL_SECONDS)
            except queue.Empty:
                self._ended = self._stopped.is_set()
                continue
            if kind == "item":
                return value  # type: ignore[return-value]
            self._ended = True
            if isinstance(value, BaseException):
                raise value
        raise StopIteration

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        self._thread.join(timeout=1)

    def _read(self, items: Iterator[Item]) -> None:
        try:
            for item in items:
                if not self._put("item", item):
                    return
            self._put("end", None)
        except BaseException as error:
            self._put("error", error)
        finally:
            if hasattr(items, "close"):
                items.close()

    def _put(self, kind: str, value: object) -> bool:
        while not (self._closed.is_set() or self._stopped.is_set()):
            try:
                self._queue.put((kind, value), timeout=POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False


def ahead(items: Iterable[Item], count: int = 1, stopped: threading.Event | None = None) -> Iterator[Item]:
    """`ReadAhead` as a generator, which is closed when it is exhausted or dropped; parameters as there."""
    reader = ReadAhead(items, count, stopped)
    try:
        yield from reader
    finally:
        reader.close()
