"""Requests of many threads become batches, in order, within limits."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from beem_plugin.serving.batcher import Batcher, ClosedError, QueueFullError


class Held:
    """A run that begins when it is released, and records its batches."""

    def __init__(self) -> None:
        self.began, self.released = threading.Semaphore(0), threading.Semaphore(0)
        self.batches: list[list[int]] = []

    def __call__(self, items: list[int]) -> list[int]:
        self.began.release()
        assert self.released.acquire(timeout=30)
        self.batches.append(items)
        if any(item < 0 for item in items):
            raise ValueError("negative")
        return [10 * item for item in items]


def make(held: Held, wait_seconds: float = 0.0, max_queued: int = 100) -> Batcher[int, int]:
    return Batcher(held, max_items=4, wait_seconds=wait_seconds, max_queued=max_queued)


def first_running(batcher: Batcher[int, int], held: Held, items: list[int]) -> Future[list[int]]:
    answer = batcher.submit(items)
    assert held.began.acquire(timeout=30)
    return answer


def test_what_queues_up_while_a_batch_runs_is_the_next_batch() -> None:
    held = Held()
    batcher = make(held)
    answers = [first_running(batcher, held, [1])]
    answers += [batcher.submit(items) for items in ([2], [3, 4], [5, 6], [7])]
    held.released.release(10)
    assert [answer.result(30) for answer in answers] == [[10], [20], [30, 40], [50, 60], [70]]
    assert held.batches == [[1], [2, 3, 4], [5, 6, 7]]
    batcher.close()


def test_a_request_that_is_larger_than_a_batch_runs_alone() -> None:
    held = Held()
    held.released.release(10)
    batcher = make(held)
    assert batcher.submit([1, 2, 3, 4, 5, 6]).result(30) == [10, 20, 30, 40, 50, 60]
    batcher.close()


def test_the_worker_waits_for_as_many_requests_as_came_last_but_not_for_a_single_client() -> None:
    held = Held()
    batcher = make(held, wait_seconds=60.0)
    answer = first_running(batcher, held, [1])  # at once, although no other comes
    several = [batcher.submit([number]) for number in (2, 3)]
    held.released.release(2)
    assert answer.result(30) == [10] and [one.result(30) for one in several] == [[20], [30]]
    held.released.release(10)
    two = [batcher.submit([number]) for number in (4, 5)]
    assert [one.result(30) for one in two] == [[40], [50]]
    assert held.batches[-2:] == [[2, 3], [4, 5]], "the second pair is gathered, whenever its requests come"
    batcher.submit([6])
    batcher.close()  # does not wait for a second request either
    assert held.batches[-1] == [6]


def test_an_error_is_the_answer_of_its_own_request_only() -> None:
    held = Held()
    batcher = make(held)
    first = first_running(batcher, held, [1])
    good, bad = batcher.submit([2]), batcher.submit([-1])
    held.released.release(10)
    assert first.result(30) == [10] and good.result(30) == [20]
    with pytest.raises(ValueError, match="negative"):
        bad.result(30)
    assert batcher.submit([3]).result(30) == [30] and batcher.is_alive
    batcher.close()


def test_limits_cancelling_and_closing() -> None:
    held = Held()
    batcher = make(held, max_queued=3)
    running = first_running(batcher, held, [1])
    dropped, kept = batcher.submit([2]), batcher.submit([3, 4])
    assert batcher.queued == 3
    with pytest.raises(QueueFullError):
        batcher.submit([5])
    assert dropped.cancel() and not running.cancel()
    held.released.release(10)
    batcher.close()
    assert running.result(0) == [10] and kept.result(0) == [30, 40], "closing answers what is queued"
    assert held.batches == [[1], [3, 4]] and not batcher.is_alive
    with pytest.raises(ClosedError):
        batcher.submit([6])
