"""What a policy has decided about the rows of a batch, in one piece of memory: one copy tells the host of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.execution.recorder import Recorder
from beem_plugin.exits.signals import prediction_of

NOT_THERE = 255
"""In every byte that was not yet copied: no sample that has left, no exit and not a number."""
PATIENCE_SECONDS = 2.0
ALIGNED = 16


class BatchSheet:
    """
    The state of `pool_kernels.decide`, and its copy in pinned memory, where the host sees it come in.

    # Parameters

    rows, labels : `int`
    device : `torch.device`
    recorder : `Recorder`
    """

    def __init__(self, rows: int, labels: int, device: torch.device, recorder: Recorder) -> None:
        self.recorder = recorder
        size = sum(aligned(8 * count) for count in (rows, rows, rows * labels)) + aligned(rows)
        self.there = torch.zeros(size, dtype=torch.uint8, device=device)
        self.here = recorder.pinned(size, dtype=torch.uint8)
        self.state = fields_of(self.there, rows, labels)
        self.state["label"] = torch.full((rows,), -1.0, dtype=torch.float64, device=device)
        self.seen = {name: field.numpy() for name, field in fields_of(self.here, rows, labels).items()}
        self.bytes_here = self.here.numpy()

    def reset(self) -> None:
        """Queues: nobody has left, and the policy remembers nothing."""
        self.there.zero_()
        self.state["label"].fill_(-1.0)

    def tell(self) -> None:
        """Queues the copy to the host."""
        self.here.copy_(self.there, non_blocking=True)

    def expect(self) -> None:
        """Before what is to tell is started; no copy may be under way."""
        self.bytes_here.fill(NOT_THERE)

    def left(self) -> np.ndarray:
        """Waits until it is known who has left: one number a row."""
        left = self.seen["left"]
        if not self._await(lambda: left.max() < NOT_THERE):
            raise RuntimeError("a captured batch has run and told nothing")
        return left

    def answers(self, samples: int, has_score: bool) -> ExitDecisions:
        """What was decided about rows 0 to `samples - 1`, all of which have left; waits until it is there."""
        exits, output, score = (self.seen[name][:samples] for name in ("exits", "output", "score"))
        # As whole numbers: a network may say NaN, but not this one.
        parts = (output.view(np.int64), score.view(np.int64))
        self._await(lambda: exits.min() > 0 and all((part != -1).all() for part in parts))
        if exits.min() <= 0:
            raise RuntimeError("a captured batch has run to its end, and not all of its samples have left")
        given = torch.from_numpy(output.copy())
        scores = torch.from_numpy(score.copy()) if has_score else None
        return ExitDecisions(torch.from_numpy(exits.copy()), prediction_of(given), given, scores)

    def _await(self, is_there: Callable[[], bool]) -> bool:
        """Looks until it is there, or nothing queued is left."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_there():
            if time.monotonic() > deadline:
                self.recorder.wait()
                return bool(is_there())
        return True


def aligned(size: int) -> int:
    """Kernels are compiled anew for what does not start at such a multiple."""
    return -(-size // ALIGNED) * ALIGNED


def fields_of(memory: Tensor, rows: int, labels: int) -> dict[str, Tensor]:
    """`exits` int64, `score` float64 and `left` uint8, each `(rows,)`, and `output` `(rows, labels)` float64."""
    fields, start = {}, 0
    shapes = {
        "exits": (torch.int64, (rows,)),
        "score": (torch.float64, (rows,)),
        "output": (torch.float64, (rows, labels)),
        "left": (torch.uint8, (rows,)),
    }
    for name, (dtype, shape) in shapes.items():
        size = dtype.itemsize * torch.Size(shape).numel()
        fields[name] = memory[start : start + size].view(dtype).view(shape)
        start += aligned(size)
    return fields
