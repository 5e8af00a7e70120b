"""Where captured work is queued: two streams, of which one carries the layers and the other the decisions."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

WARM_UPS = 2  # kernels, workspaces and tuned choices are made on first use, which must not be part of a graph


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected: among it may be graphs of another engine, whose end would be the end of a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Recorder(Protocol):
    """What a lane queues its work on."""

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor: ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]: ...

    def aside(self, work: Callable[[], None]) -> None: ...

    def together(self) -> None: ...

    def enter(self) -> None: ...

    def wait(self) -> None: ...


class CudaRecorder:
    """
    Two streams and a memory pool, shared by the lanes of all lengths, of which one runs at a time.

    # Parameters

    device : `torch.device`
    """

    def __init__(self, device: torch.device) -> None:
        self.main, self.side = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, pin_memory=True)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A graph of `work`, and what starts it on the current stream."""
        self.main.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.main):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with (
            uncollected(),
            torch.cuda.graph(graph, pool=self.pool, stream=self.main, capture_error_mode="thread_local"),
        ):
            work()
        with torch.cuda.stream(self.main):
            graph.replay()  # what the work left in the static buffers is now there, for the capture of the next graph
        torch.cuda.synchronize()
        return graph.replay

    def aside(self, work: Callable[[], None]) -> None:
        """Queues `work` beside what is queued from now on; it begins when all that was queued before is done."""
        self.side.wait_stream(self.main)
        with torch.cuda.stream(self.side):
            work()

    def together(self) -> None:
        """What is queued from now on begins when the work put aside is done."""
        self.main.wait_stream(self.side)

    def enter(self) -> None:
        """Makes the main stream the current one."""
        torch.cuda.set_stream(self.main)

    def wait(self) -> None:
        """Until nothing queued is left; usually nothing is."""
        self.main.synchronize()
