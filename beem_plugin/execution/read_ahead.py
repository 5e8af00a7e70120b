"""The next items of an iterable, made by a thread while the last one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

_POLL_SECONDS = 0.05


def ahead(items: Iterable[Item], count: int = 1, stopped: threading.Event | None = None) -> Iterator[Item]:
    """
    # Parameters

    items : `Iterable[Item]`
        Iterated in a thread of its own, and closed there. The thread ends when the iterator returned is closed or
        exhausted. Errors of `items` are raised in the place of the item.
    count : `int`, optional (default = `1`)
        Items that may wait.
    stopped : `threading.Event`, optional (default = `None`)
        Ends the iteration once it is set: for the stages of a pipeline, where a stage waits in the thread of the next
        one and cannot be closed from outside.
    """
    ready: queue.Queue[tuple[str, object]] = queue.Queue(count)
    closed = threading.Event()
    stopped = stopped if stopped is not None else closed

    def put(kind: str, value: object) -> bool:
        while not (closed.is_set() or stopped.is_set()):
            try:
                ready.put((kind, value), timeout=_POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        iterator = iter(items)
        try:
            for item in iterator:
                if not put("item", item):
                    break
            else:
                put("end", None)
        except BaseException as error:
            put("error", error)
        finally:
            if hasattr(iterator, "close"):
                iterator.close()

    thread = threading.Thread(target=work, name="read ahead", daemon=True)
    thread.start()
    try:
        while True:
            try:
                kind, value = ready.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if stopped.is_set():
                    return
                continue
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(value, BaseException)
                raise value
            yield value  # type: ignore[misc]
    finally:
        closed.set()
        thread.join(timeout=1)
