"""Gathers requests of several threads into batches that one worker thread runs."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFullError(Exception):
    """The queue holds as many items as it may."""


class ClosedError(Exception):
    """The batcher accepts no more requests."""


@dataclass
class _Request(Generic[Item, Result]):
    items: Sequence[Item]
    answer: Future[list[Result]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class Batcher(Generic[Item, Result]):
    """
    A queue and the thread that owns the engine. While a batch runs, requests queue up; the next batch takes all of them
    up to `max_items`. If fewer requests are queued than the last batch held, more are likely on their way, and the
    worker waits for them, but no longer than `wait_seconds` after the first one arrived. A single client never waits.

    `run` computes a batch, one result for each item, and only in the worker thread; `max_queued` items may wait;
    `on_batch` gets the items of each batch and the seconds that its oldest request has waited.
    """

    run: Callable[[list[Item]], Sequence[Result]]
    max_items: int
    wait_seconds: float
    max_queued: int
    on_batch: Callable[[int, float], None] | None = None

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[_Request[Item, Result]] = deque()
        self._last_requests = 0
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Items that wait."""
        with self._changed:
            return sum(len(request.items) for request in self._queue)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, items: Sequence[Item]) -> Future[list[Result]]:
        """The results of `items`, later. A future that is cancelled before its batch begins is not computed."""
        request: _Request[Item, Result] = _Request(items)
        with self._changed:
            if self._closed:
                raise ClosedError
            if sum(len(waiting.items) for waiting in self._queue) + len(items) > self.max_queued:
                raise QueueFullError
            self._queue.append(request)
            self._changed.notify_all()
        return request.answer

    def close(self) -> None:
        """Runs what is queued, then ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while requests := self._gather():
            if len(requests) == 1 or not self._answer(requests):
                for request in requests:
                    self._answer([request], is_last=True)

    def _gather(self) -> list[_Request[Item, Result]]:
        """The requests of the next batch; none after `close` if the queue is empty."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return []
                end = self._queue[0].arrived + self.wait_seconds
                self._changed.wait_for(self._is_enough, timeout=max(0.0, end - time.monotonic()))
                taken: list[_Request[Item, Result]] = []
                size = 0
                while self._queue and (not taken or size + len(self._queue[0].items) <= self.max_items):
                    request = self._queue.popleft()
                    if request.answer.set_running_or_notify_cancel():
                        taken.append(request)
                        size += len(request.items)
                self._last_requests = len(taken)
            if taken:
                if self.on_batch is not None:
                    self.on_batch(size, time.monotonic() - taken[0].arrived)
                return taken

    def _is_enough(self) -> bool:
        full = sum(len(request.items) for request in self._queue) >= self.max_items
        return full or self._closed or len(self._queue) >= self._last_requests

    def _answer(self, requests: Sequence[_Request[Item, Result]], is_last: bool = False) -> bool:
        """Runs a batch; whether it succeeded. An error is the answer only if `is_last`; else each is run alone."""
        try:
            results = list(self.run([item for request in requests for item in request.items]))
        except Exception as error:
            if is_last:
                requests[0].answer.set_exception(error)
            return False
        start = 0
        for request in requests:
            request.answer.set_result(results[start : start + len(request.items)])
            start += len(request.items)
        return True
