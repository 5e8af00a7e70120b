"""The next items of an iterable, made by a thread while the last one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item], count: int = 1) -> Iterator[Item]:
    """
    # Parameters

    items : `Iterable[Item]`
        Iterated in a thread of its own, of which nothing is left when the iterator returned is closed or used up. Its
        errors are raised where the item would have come.
    count : `int`, optional (default = `1`)
        Items that may wait.
    """
    ready: queue.Queue[tuple[str, object]] = queue.Queue(count)
    stopped = threading.Event()

    def put(kind: str, value: object) -> bool:
        while not stopped.is_set():
            try:
                ready.put((kind, value), timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
        except BaseException as error:
            put("error", error)
            return
        put("end", None)

    thread = threading.Thread(target=work, name="read ahead", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(value, BaseException)
                raise value
            yield value  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join(timeout=5)
