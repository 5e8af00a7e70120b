"""Code that runs in CUDA graphs and Triton kernels on a GPU, executed on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from beem_plugin.execution import Single
from beem_plugin.execution.compiled.capture import EagerRecorder


class CountingRecorder(EagerRecorder):
    """Counts captured and replayed segments, and decisions on the second stream."""

    def __init__(self) -> None:
        self.captured = self.replayed = self.decided = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        super().capture(work)
        self.decided = 0

        def replay() -> None:
            self.replayed += 1
            work()

        return replay

    def aside(self, work: Callable[[], None]) -> None:
        self.decided += 1
        work()


class GraphsOnHost(Single):
    """Takes the road of a GPU on the CPU."""

    def __init__(self, make_recorder: Callable[[], Any] = CountingRecorder, **options: Any) -> None:
        super().__init__(**options)
        self.make_recorder = make_recorder

    def _captures(self, device: torch.device) -> bool:
        return True

    def _recorder(self, device: torch.device) -> Any:
        return self.make_recorder()

    @property
    def recorders(self) -> list[CountingRecorder]:
        assert self._runner is not None
        return self._runner.recorders  # type: ignore[return-value]
