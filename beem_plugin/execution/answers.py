"""Where the samples of one batch or window left, filled in as they leave."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.transfer import to_pinned
from beem_plugin.exits.signals import decision_dtype, prediction_of


class Answers:
    """
    # Parameters

    samples : `int`
    num_labels : `int`
    device : `torch.device`
    """

    def __init__(self, samples: int, num_labels: int, device: torch.device) -> None:
        self.exits = torch.zeros(samples, dtype=torch.int64, device=device)
        self.output = torch.zeros(samples, num_labels, dtype=decision_dtype(device), device=device)
        self.scores: Tensor | None = None
        self.fetched: tuple[Tensor | None, ...] | None = None
        self.event: Any = None

    def store(self, rows: Tensor, exits: Tensor | int, output: Tensor, scores: Tensor | None) -> None:
        """
        The samples at `rows` have left.

        # Parameters

        rows : `Tensor`
            `(leaving,)` int64, their places in the batch or window.
        exits : `Tensor` or `int`
            `(leaving,)` int64, or one number for all of them.
        output : `Tensor`
            `(leaving, labels)` log-probabilities, or values.
        scores : `Tensor`, optional
            `(leaving,)`
        """
        self.exits[rows] = exits
        self.output[rows] = output.to(self.output.dtype)
        if scores is not None:
            if self.scores is None:
                self.scores = torch.zeros_like(self.output[:, 0])
            self.scores[rows] = scores.to(self.output.dtype)

    def fetch(self) -> None:
        """
        Starts the copy to the host of what was recorded, which is everything. On a GPU `decisions` then waits for what
        was queued up to now, and not for what is queued afterwards.
        """
        if self.exits.device.type == "cpu":
            return
        recorded = (self.exits, self.output, self.scores)
        self.fetched = tuple(None if one is None else to_pinned(one) for one in recorded)
        self.event = torch.cuda.Event()
        self.event.record()

    def decisions(self) -> ExitDecisions:
        """What was recorded, on the CPU. It is an error if a sample was not."""
        if self.fetched is None:
            exits, output = self.exits.cpu(), self.output.cpu()
            scores = None if self.scores is None else self.scores.cpu()
        else:
            self.event.synchronize()
            exits, output, scores = self.fetched  # type: ignore[assignment]
        assert bool((exits > 0).all()), "the last exit accepts everybody"
        return ExitDecisions(exits, prediction_of(output), output, scores)
