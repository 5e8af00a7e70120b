"""CUDA graphs: capturing work, replaying it, and waiting for what it writes to pinned memory."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

WARM_UPS = 2
"""Runs before a capture: kernels are compiled and workspaces allocated on first use, which cannot be captured."""
POLLS_PER_CLOCK = 100_000
TIMEOUT_SECONDS = 2.0


class EagerRecorder:
    """Runs work at once, and again at each replay: graph-based code on a device without graphs or streams."""

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Zeros in host memory that the device can write."""
        return torch.zeros(*shape, dtype=dtype)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Captures `work`; the function returned replays it on the current stream."""
        work()
        return work

    def aside(self, work: Callable[[], None]) -> None:
        """Queues `work` on the second stream. It starts when everything queued before is done."""
        work()

    def join(self) -> None:
        """Work queued from now on starts when the second stream is done."""

    def enter(self) -> None:
        """Makes the first stream the current one."""

    def wait(self) -> None:
        """Blocks until the first stream is done."""


Recorder = EagerRecorder


class CudaRecorder(EagerRecorder):
    """Two streams and a memory pool, shared by graphs of which one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self.main, self.side = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, pin_memory=True)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.main.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.main):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with (
            without_collection(),
            torch.cuda.graph(graph, pool=self.pool, stream=self.main, capture_error_mode="thread_local"),
        ):
            work()
        with torch.cuda.stream(self.main):
            graph.replay()  # later captures may read what this work leaves in static buffers
        torch.cuda.synchronize()
        return graph.replay

    def aside(self, work: Callable[[], None]) -> None:
        self.side.wait_stream(self.main)
        with torch.cuda.stream(self.side):
            work()

    def join(self) -> None:
        self.main.wait_stream(self.side)

    def enter(self) -> None:
        torch.cuda.set_stream(self.main)

    def wait(self) -> None:
        self.main.synchronize()


class CaptureError(Exception):
    """Work cannot be captured. It still runs uncaptured."""


@contextmanager
def without_collection() -> Iterator[None]:
    """Turns garbage collection off: destroying another graph during a capture would invalidate the capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def await_pinned(is_ready: Callable[[], bool], wait: Callable[[], None]) -> bool:
    """Polls pinned memory. Polling notices a result some 10 us earlier than an event."""
    deadline: float | None = None
    while True:
        for _ in range(POLLS_PER_CLOCK):
            if is_ready():
                return True
        now = time.monotonic()
        deadline = now + TIMEOUT_SECONDS if deadline is None else deadline
        if now > deadline:
            wait()
            return is_ready()


def await_row(row: np.ndarray, wait: Callable[[], None]) -> list[float]:
    """Polls pinned memory until it has no NaN, and returns its values."""
    values: list[float] = row.tolist()

    def is_complete() -> bool:
        values[:] = row.tolist()
        return not [value for value in values if value != value]

    await_pinned(is_complete, wait)
    return values
