"""
One sample of one padded length through captured graphs.

There is one graph a segment. Inside a graph the layers follow each other, and each exit's head and policy step run on a
second stream beside the next exit's layers:

    main   copy, embed, layers 1 | layers 2   | layers 3  ...
    side                         | decision 1 | decision 2 ...

A decision writes its result into pinned memory, which the host polls while the layers go on: launching a graph is all
that the host does for a segment.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.execution.compiled.capture import Recorder, await_pinned
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.compiled.segments import plan_segments
from beem_plugin.execution.stepped_network import pad_token_of


class SampleGraphs:
    """
    Static buffers and one graph a segment.

    # Parameters

    network : `CompiledNetwork`
    length : `int`
        Tokens, padding included.
    fields : `tuple[str, ...]`
        The inputs beside the attention mask; `input_ids` comes first.
    recorder : `Recorder`
    check_every : `int`, optional (default = `1`)
    lookahead : `bool`, optional (default = `True`)
        See `plan_segments`.
    """

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
        # One row a field, and the mask.
        self.staging = recorder.pinned(len(fields) + 1, 1, length, dtype=torch.int64)
        self.staging.fill_(1)
        self.staged = self.staging.numpy()[:, 0]
        self.fills = [pad_token_of(network.network) if name == "input_ids" else 0 for name in fields]
        self.inputs = self.staging.to(network.device)
        self.mask = torch.ones(1, length, dtype=torch.bool, device=network.device)
        self.states: list[BackboneState | None] = [None] * (exits + 1)
        self.memories: list[Any] = [network.decider.start(1), *([None] * exits)]
        """The policy's memory before exit 1 and after each exit, at fixed addresses, as `states`."""
        # One row an exit: whether the sample exits, score, output. NaN until it is written.
        self.results = recorder.pinned(exits + 1, 2 + network.num_labels, dtype=torch.float64)
        self.seen = self.results.numpy()
        graphs = [recorder.capture(partial(self._run_segment, number)) for number in range(len(self.segments))]
        self.steps = [(graph, segment.awaited) for graph, segment in zip(graphs, self.segments, strict=True)]

    def run(self, sample: dict[str, Tensor]) -> tuple[int, Tensor, Tensor | None]:
        """Exit, output `(1, labels)` and score `(1,)` of a sample without padding, `(1, tokens)`, on the CPU."""
        self.recorder.enter()
        self._stage(sample)
        exits = self.network.num_exits
        for launch, awaited in self.steps:
            launch()
            for exit_number in awaited:
                row = self.seen[exit_number]
                await_pinned(partial(is_complete, row), self.recorder.wait)
                if row[0] == 1 or exit_number == exits:
                    result = torch.from_numpy(row.copy())
                    return exit_number, result[None, 2:], result[1:2] if self.network.decider.has_score else None
        raise AssertionError("all samples exit at the last exit")

    def _stage(self, sample: dict[str, Tensor]) -> None:
        """Writes a sample to the pinned inputs. The graphs of an earlier sample must be done with them."""
        self.recorder.wait()
        tokens = sample["input_ids"].shape[1]
        for row, fill, name in zip(self.staged, self.fills, self.fields, strict=False):
            row[:tokens] = sample[name].numpy()[0]
            row[tokens:] = fill
        self.staged[-1, :tokens] = 1
        self.staged[-1, tokens:] = 0
        self.seen.fill(np.nan)

    def _run_segment(self, number: int) -> None:
        segment = self.segments[number]
        if number == 0:
            self.inputs.copy_(self.staging, non_blocking=True)
            self.mask.copy_(self.inputs[-1])
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
            batch = {name: self.inputs[row] for row, name in enumerate(self.fields)}
            self.states[0] = self.network.embed({**batch, "attention_mask": self.mask})
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


def is_complete(row: np.ndarray) -> bool:
    """Whether all numbers of a result are written; they need not arrive together."""
    return not any(value != value for value in row.tolist())
