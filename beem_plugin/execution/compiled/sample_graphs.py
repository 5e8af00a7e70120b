"""
One sample of one padded length through captured graphs.

There is one graph a segment. Inside a graph the layers follow each other, and each exit's head and policy step run on a
second stream beside the next exit's layers:

    main   copy, embed, layers 1 | layers 2   | layers 3  ...
    side                         | decision 1 | decision 2 ...

A decision writes its result into pinned memory, which the host polls while the layers go on: launching a graph is all
that the host does for a segment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.execution.compiled.capture import Recorder, await_row
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.stepped_network import pad_token_of

Result = tuple[int, float | None, list[float]]
"""Exit, score (`None` for a policy without) and output of one sample."""


class SampleGraphs:
    """Static buffers and one graph a segment."""

    def __init__(
        self,
        network: CompiledNetwork,
        length: int,
        fields: tuple[str, ...],
        recorder: Recorder,
        check_every: int = 1,
        lookahead: bool = True,
    ) -> None:
        self.network, self.recorder, self.fields, self.length = network, recorder, fields, length
        exits = network.num_exits
        # The layers after an exit need its result if later exits read its outputs.
        self.decides_aside = not network.carries_memory
        can_exit = [network.can_exit[number] for number in range(1, exits + 1)]
        self.segments = plan_segments(exits, can_exit, check_every, lookahead and self.decides_aside)
        # The fields, then the mask, in one tensor of bytes, so that one copy brings them to the device.
        self.staging = recorder.pinned(length * (8 * len(fields) + 1), dtype=torch.uint8)
        staged, mask = self._parts_of(self.staging)
        staged.fill_(1)
        mask.fill_(True)
        pad_token_id = pad_token_of(network.network)
        self.rows = [
            (staged[row, 0].numpy(), pad_token_id if name == "input_ids" else 0, name)
            for row, name in enumerate(fields)
        ]
        self.staged_mask = mask[0].numpy()
        self.staged_tokens = length
        """Tokens that are not masked in `staging`."""
        self.inputs = self.staging.to(network.device)
        device_rows, device_mask = self._parts_of(self.inputs)
        self.batch = {**dict(zip(fields, device_rows, strict=True)), "attention_mask": device_mask}
        self.states: list[BackboneState | None] = [None] * (exits + 1)
        self.memories: list[Any] = [network.decider.start(1), *([None] * exits)]
        """The policy's memory before exit 1 and after each exit, at fixed addresses, as `states`."""
        # One row an exit: whether the sample exits, score, output. NaN until it is written.
        self.results = recorder.pinned(exits + 1, 2 + network.num_labels, dtype=torch.float64)
        self.seen = self.results.numpy()
        graphs = [recorder.capture(partial(self._run_segment, number)) for number in range(len(self.segments))]
        self.steps = [(graph, segment.awaited) for graph, segment in zip(graphs, self.segments, strict=True)]

    def run(self, sample: Mapping[str, np.ndarray]) -> Result:
        """`sample`: `(tokens,)` int64 each, without padding."""
        self.recorder.enter()
        self._stage(sample)
        exits = self.network.num_exits
        for launch, awaited in self.steps:
            launch()
            for exit_number in awaited:
                values = await_row(self.seen[exit_number], self.recorder.wait)
                if values[0] == 1 or exit_number == exits:
                    return exit_number, values[1] if self.network.decider.has_score else None, values[2:]
        raise AssertionError("all samples exit at the last exit")

    def _stage(self, sample: Mapping[str, np.ndarray]) -> None:
        """Writes a sample to the pinned inputs. The graphs of an earlier sample must be done with them."""
        self.recorder.wait()
        tokens = len(sample["input_ids"])
        for row, fill, name in self.rows:
            row[:tokens] = sample[name]
            if tokens < self.length:
                row[tokens:] = fill
        if tokens != self.staged_tokens:
            self.staged_mask[:tokens] = True
            self.staged_mask[tokens:] = False
            self.staged_tokens = tokens
        self.seen.fill(np.nan)

    def _parts_of(self, staging: Tensor) -> tuple[Tensor, Tensor]:
        """The fields `(fields, 1, length)` int64 and the mask `(1, length)` bool in `staging`."""
        size = 8 * len(self.fields) * self.length
        return staging[:size].view(torch.int64).view(-1, 1, self.length), staging[size:].view(torch.bool)[None]

    def _run_segment(self, number: int) -> None:
        segment = self.segments[number]
        if number == 0:
            self.inputs.copy_(self.staging, non_blocking=True)
        is_aside = False
        first = min(segment.decisions.start, segment.layers.start)
        for exit_number in range(first, max(segment.decisions.stop, segment.layers.stop)):
            # With both in a segment, the decision before stands beside these layers.
            if exit_number - 1 in segment.decisions and exit_number in segment.layers and self.decides_aside:
                is_aside |= self._queue_decision(exit_number - 1)
            if exit_number in segment.layers:
                self._run_layers(exit_number)
            is_next_here = exit_number + 1 in segment.layers and self.decides_aside
            if exit_number in segment.decisions and not is_next_here:
                is_aside |= self._queue_decision(exit_number)
        if is_aside:
            self.recorder.join()

    def _run_layers(self, exit_number: int) -> None:
        if exit_number == 1:
            self.states[0] = self.network.embed(self.batch)
        state = self.states[exit_number - 1]
        assert state is not None, "segments follow each other"
        self.states[exit_number] = self.network.advance(exit_number, state)

    def _queue_decision(self, exit_number: int) -> bool:
        """Queues head and policy step of an exit; whether on the second stream."""
        if not self.network.needed[exit_number]:
            return False
        if not self.decides_aside:
            self._decide(exit_number)
            return False
        self.recorder.aside(partial(self._decide, exit_number))
        return True

    def _decide(self, exit_number: int) -> None:
        state = self.states[exit_number]
        assert state is not None, "layers come before decisions"
        signals = self.network.exit_signals(exit_number, state)
        out = self.results[exit_number : exit_number + 1]
        memory = next(memory for memory in reversed(self.memories[:exit_number]) if memory is not None)
        _, self.memories[exit_number] = self.network.decider.step(exit_number, signals, memory, out)


@dataclass(frozen=True)
class Segment:
    """Exits whose layers are computed, at which the policy is stepped, and whose results the host reads."""

    layers: range
    decisions: range
    awaited: tuple[int, ...]


def plan_segments(num_exits: int, can_exit: Sequence[bool], check_every: int, lookahead: bool) -> list[Segment]:
    """Divides the network after every `check_every` exits where samples can exit."""
    possible = [number for number in range(1, num_exits) if can_exit[number - 1]]
    cuts = possible[check_every - 1 :: check_every]
    segments: list[Segment] = []
    layer = decided = 0
    for cut in [*cuts, num_exits]:
        end = min(cut + 1, num_exits) if lookahead else cut
        if end == num_exits:  # the rest would be a decision without layers
            cut = num_exits
        awaited = tuple(number for number in range(decided + 1, cut + 1) if number in possible or number == num_exits)
        segments.append(Segment(range(layer + 1, end + 1), range(decided + 1, cut + 1), awaited))
        layer, decided = end, cut
        if cut == num_exits:
            break
    return segments
