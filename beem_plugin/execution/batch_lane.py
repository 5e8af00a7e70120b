"""
Batches of one padded length through captured CUDA graphs.

A lane holds static buffers with a row a sample, and graphs: one for each segment of the network and number of rows. A
graph takes the rows that it is told, brings them through its layers and puts them back. The exit before its layers
decides beside them, so that the host knows who has left, and starts the next graph with fewer rows, while the layers
run:

    main   gather, layers 3 | scatter, gather, layers 4 | ...
    side   decision 2       |          decision 3       | ...

Graphs are captured when they are first needed, which may be in the midst of a batch: with rows that hold no sample.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.execution.batch_decider import Decider
from beem_plugin.execution.batch_rows import Rows
from beem_plugin.execution.batch_sheet import BatchSheet
from beem_plugin.execution.batch_staging import BatchStaging
from beem_plugin.execution.captured import CaptureError
from beem_plugin.execution.engine import SteppedNetwork
from beem_plugin.execution.recorder import Recorder
from beem_plugin.execution.samples import pad_token_of
from beem_plugin.execution.segments import plan_segments
from beem_plugin.exits.policy import ExitPolicy

Graphs = dict[int, Callable[[], None]]
"""What starts the graph of a segment, for those that are captured."""


class BatchLane:
    """
    # Parameters

    network : `SteppedNetwork`
    policy : `ExitPolicy`
        Bound.
    decider : `Decider`
    length : `int`
        Tokens, padding included.
    capacity : `int`
        Most rows of a batch.
    fields : `tuple[str, ...]`
        The inputs beside the attention mask.
    device : `torch.device`
    recorder : `Recorder`
    check_every : `int`, optional (default = `1`)
        Exits at which somebody can leave that share a graph.
    """

    def __init__(
        self,
        network: SteppedNetwork,
        policy: ExitPolicy,
        decider: Decider,
        length: int,
        capacity: int,
        fields: tuple[str, ...],
        device: torch.device,
        recorder: Recorder,
        check_every: int = 1,
    ) -> None:
        self.network, self.decider, self.recorder = network, decider, recorder
        self.length, self.capacity = length, capacity
        exits = network.num_exits
        can_leave = [number < exits and policy.can_leave(number) for number in range(1, exits + 1)]
        self.needed = [
            number == exits or leaving or policy.needs(number) for number, leaving in enumerate(can_leave, start=1)
        ]
        self.segments = plan_segments(exits, can_leave, check_every, True)
        self.staging = BatchStaging(fields, capacity, length, pad_token_of(network), device, recorder)
        self.position = torch.arange(length, device=device)
        self.order = torch.arange(capacity, device=device)
        self.chosen = recorder.pinned(capacity, dtype=torch.int64)
        self.chosen_here = self.chosen.numpy()
        self.rows = torch.zeros(capacity, dtype=torch.int64, device=device)
        # The last row holds no sample.
        self.mask = torch.zeros(capacity + 1, length, dtype=torch.bool, device=device)
        self.mask[capacity, : -(-length // 2)] = True
        self.staging.make_up(1)
        inputs, _ = self.staging.fetch(1)
        like = network.embed({**inputs, "attention_mask": self.mask[capacity:]}).hidden_states
        self.spare = like[0].clone()
        self.hidden = like.new_zeros((capacity + 1, *like.shape[1:]))
        self.sheet = BatchSheet(capacity + 1, network.num_labels, device, recorder)
        self.flags = torch.zeros(capacity, dtype=torch.uint8, device=device)
        self.tables: dict[tuple[int, int], dict[str, Any]] = {}

    def run(
        self, batch: dict[str, Tensor], lengths: np.ndarray, rows: Rows, graphs: Callable[[int], Graphs]
    ) -> ExitDecisions:
        """
        # Parameters

        batch : `dict[str, Tensor]`
            On the CPU, padded on the right.
        lengths : `np.ndarray`
            `(batch,)` int64: the samples' tokens.
        rows : `Rows`
            Of this batch.
        graphs : `Callable[[int], Graphs]`
            Those of this lane for so many rows, to which more are added.
        """
        for number in range(len(self.segments)):
            count = len(rows)
            held = graphs(count)
            if number not in held:
                held[number] = self._capture(number, count)
            # What the segment before was to read, it has read: it has told who left.
            if number == 0:
                self.staging.load(batch, lengths, count)
            else:
                self.chosen_here[:count] = rows.slots
            self.sheet.expect()
            held[number]()
            if not rows.take_out(self.sheet.left()):
                break
        return self.sheet.answers(len(lengths), self.decider.has_score)

    def _capture(self, number: int, count: int) -> Callable[[], None]:
        """The graph of a segment. Nothing of a batch under way is touched: there are rows that hold no sample."""
        if number == 0:
            self.staging.make_up(count)
        else:
            self.chosen_here[:count] = self.capacity
            self.hidden[self.capacity] = self.spare
        try:
            return self.recorder.capture(partial(self._run_segment, number, count))
        except Exception as error:  # torch, Triton and its compiler fail in many ways
            said = (str(error).strip().splitlines() or [""])[0]
            raise CaptureError(
                f"capturing {count} samples of {self.length} tokens failed: {type(error).__name__}: {said}"
            ) from error

    def _run_segment(self, number: int, count: int) -> None:
        segment = self.segments[number]
        if number == 0:
            rows, state = self.order[:count], self._embed(count)
        else:
            rows = self.rows[:count]
            rows.copy_(self.chosen[:count], non_blocking=True)
            state = self.network.backbone.make_state(self.hidden.index_select(0, rows), self.mask.index_select(0, rows))
        # A backbone may keep tables for as long as they are large enough; a graph reads them as long as it is.
        self.tables[number, count] = dict(state.shared)
        first = segment.layers.start - 1
        held = [state]  # read aside, while the layers get the memory of what is let go
        for exit_number in range(first, segment.layers.stop):
            if exit_number > first:
                state = self.network.advance(exit_number, state)
                held.append(state)
            if exit_number in segment.decisions and self.needed[exit_number - 1]:
                is_told = exit_number == segment.decisions[-1]
                self.recorder.aside(partial(self._decide, exit_number, state, rows, is_told))
        if segment.layers.stop <= self.network.num_exits:
            if number == 0:
                self.hidden[:count].copy_(state.hidden_states)
            else:
                self.hidden.index_copy_(0, rows, state.hidden_states)
        self.recorder.together()

    def _embed(self, count: int) -> BackboneState:
        inputs, lengths = self.staging.fetch(count)
        mask = torch.lt(self.position, lengths[:, None], out=self.mask[:count])
        self.sheet.reset()
        return self.network.embed({**inputs, "attention_mask": mask})

    def _decide(self, exit_number: int, state: BackboneState, rows: Tensor, is_told: bool) -> None:
        logits = self.decider.logits(exit_number, state)
        is_last = exit_number == self.network.num_exits
        self.decider.decide(exit_number, logits, rows, self.sheet.state, self.flags[: len(rows)], is_last)
        if is_told:
            self.sheet.tell()
