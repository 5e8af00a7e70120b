"""CUDA graphs and compiled functions of decoding. On a CPU the work itself runs."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger(__name__)

WARM_UPS = 2
"""Runs before a capture: kernels are compiled and workspaces allocated on first use."""

_fused: dict[tuple[str, torch.device], Callable[..., Any]] = {}


class CapturedWork:
    """
    Work that is captured once and started many times.

    # Parameters

    work : `Callable[[], None]`
        Reads and writes static tensors only; it runs some times before it is captured.
    device : `torch.device`
    """

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        self._start = work
        self._events: list[torch.cuda.Event] = []
        if device.type != "cuda":
            return
        with torch.cuda.device(device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            collects = gc.isenabled()
            gc.disable()  # a graph that is freed during a capture would end the capture
            try:
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    work()
            finally:
                if collects:
                    gc.enable()
            torch.cuda.synchronize()
            self._events = [torch.cuda.Event() for _ in range(2)]
        self._start = graph.replay

    def start(self) -> None:
        """Queues the work on the current stream."""
        self._start()
        if self._events:
            self._events.reverse()
            self._events[0].record()

    def wait_for_previous(self) -> bool:
        """Returns when the start before the last one has finished; always true."""
        if self._events:
            self._events[1].synchronize()
        return True

    def wait(self) -> None:
        """Returns when the last start has finished."""
        if self._events:
            self._events[0].synchronize()


class _Fused:
    """A function compiled by `torch.compile`; itself if that fails."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.compiled = function, torch.compile(function, dynamic=False)

    def __call__(self, *tensors: Any) -> Any:
        if self.compiled is None:
            return self.function(*tensors)
        try:
            return self.compiled(*tensors)
        except Exception as error:  # Inductor and its compilers fail in many ways
            if torch.cuda.is_current_stream_capturing():
                raise
            found = (str(error).strip().splitlines() or [type(error).__name__])[0]
            logger.warning("an exit policy is not compiled: %s", found)
            self.compiled = None
            return self.function(*tensors)


def fused(function: Callable[..., Any], key: str, device: torch.device) -> Callable[..., Any]:
    """
    `function` compiled once for each `key` and device; itself on a CPU.

    # Parameters

    function : `Callable`
        A function of tensors.
    key : `str`
        Its source and the shapes of its inputs: functions of equal keys must be equal.
    device : `torch.device`
    """
    if device.type != "cuda":
        return function
    return _fused.setdefault((key, device), _Fused(function))
