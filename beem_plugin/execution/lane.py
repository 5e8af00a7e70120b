"""
One sample of one padded length through captured CUDA graphs.

A lane holds static buffers and one graph a segment. Inside a graph the layers follow each other, and each exit's head
and policy step run beside the next exit's layers:

    main   copy, embed, layers 1 | layers 2   | layers 3  ...
    side                         | decision 1 | decision 2 ...

A decision writes its answer into pinned memory, where the host sees it while the layers go on: starting a graph is all
that the host does for a segment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.execution.engine import SteppedNetwork, pad_token_of
from beem_plugin.execution.fused_decision import FusedDecisions, fused_decisions
from beem_plugin.execution.pooled_heads import TOLERANCE
from beem_plugin.execution.recorder import Recorder
from beem_plugin.execution.segments import plan_segments
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.state import ExitState

logger = logging.getLogger(__name__)

LOOKS = 200_000
"""Looks at pinned memory, some milliseconds, before the clock is asked how long it has been."""
PATIENCE_SECONDS = 2.0
HEADS = ("fused", "compiled", "plain")


class Lane:
    """
    # Parameters

    network : `SteppedNetwork`
    policy : `ExitPolicy`
        Bound.
    length : `int`
        Tokens, padding included.
    fields : `tuple[str, ...]`
        The inputs beside the attention mask.
    device : `torch.device`
    recorder : `Recorder`
    check_every : `int`
    lookahead : `bool`
    heads : `str`
        One of `HEADS`.
    """

    def __init__(
        self,
        network: SteppedNetwork,
        policy: ExitPolicy,
        length: int,
        fields: tuple[str, ...],
        device: torch.device,
        recorder: Recorder,
        check_every: int = 1,
        lookahead: bool = True,
        heads: str = "fused",
    ) -> None:
        self.network, self.policy, self.recorder = network, policy, recorder
        self.fields, self.length = fields, length
        self.pad_token_id = pad_token_of(network)
        exits = network.num_exits
        # An exit that later ones look back at is needed before their layers.
        self.is_aside = not getattr(network, "looks_back", False)
        can_leave = [number < exits and policy.can_leave(number) for number in range(1, exits + 1)]
        self.needed = [
            number == exits or leaving or policy.needs(number) for number, leaving in enumerate(can_leave, start=1)
        ]
        self.segments = plan_segments(exits, can_leave, check_every, lookahead and self.is_aside)
        self.staging = recorder.pinned(len(fields) + 1, 1, length, dtype=torch.int64)
        self.staging.fill_(1)
        self.staged = self.staging.numpy()[:, 0]
        self.tokens = length  # that the mask holds
        self.rows = [
            (self.staged[row], self.pad_token_id if name == "input_ids" else 0, name) for row, name in enumerate(fields)
        ]
        self.inputs = self.staging.to(device)
        self.mask = torch.ones(1, length, dtype=torch.uint8, device=device)
        self.states: list[BackboneState | None] = [None] * (exits + 1)
        self.memories: list[ExitState | None] = [None] * (exits + 1)
        self.has_score = False
        # One row an exit: leaves, score, log-probabilities. Not a number: not there yet.
        self.answers = recorder.pinned(exits + 1, 2 + network.num_labels, dtype=torch.float64)
        self.seen = self.answers.numpy()
        self.fused: FusedDecisions | None = None
        self.say: Callable[..., tuple[Tensor, ExitState, bool]] = self._say
        if heads == "compiled":
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)  # one an exit
            self.say = torch.compile(self._say, mode="max-autotune-no-cudagraphs", dynamic=False)
        elif heads == "fused" and self.is_aside:
            self.fused = self._fused(device)
        graphs = [recorder.capture(partial(self._run_segment, number)) for number in range(len(self.segments))]
        # What starts a segment, and the exits, with their answers, at which somebody can leave.
        self.steps = [
            (graph, [(number, self.seen[number], number == exits) for number in segment.asked])
            for graph, segment in zip(graphs, self.segments, strict=True)
        ]

    def _run_segment(self, number: int) -> None:
        segment = self.segments[number]
        if number == 0:
            self._stage()
        aside = False
        for exit_number in range(
            min(segment.decisions.start, segment.layers.start), max(segment.decisions.stop, segment.layers.stop)
        ):
            # The decision about the exit before stands beside these layers.
            if exit_number - 1 in segment.decisions and exit_number in segment.layers and self.is_aside:
                aside |= self._queue_decision(exit_number - 1)
            if exit_number in segment.layers:
                self._run_layers(exit_number)
            is_beside = exit_number + 1 in segment.layers and self.is_aside
            if exit_number in segment.decisions and not is_beside:
                aside |= self._queue_decision(exit_number)
        if aside:
            self.recorder.join()

    def _stage(self) -> None:
        if self.fused is not None and self.fused.is_direct:
            self.fused.stage(self.staging, self.inputs, self.mask)
        else:
            self.inputs.copy_(self.staging, non_blocking=True)
            self.mask.copy_(self.inputs[-1])

    def _queue_decision(self, exit_number: int) -> bool:
        if not self.needed[exit_number - 1]:
            return False
        if self.is_aside:
            self.recorder.aside(partial(self._decide, exit_number))
        else:
            self._decide(exit_number)
        return self.is_aside

    def _run_layers(self, exit_number: int) -> None:
        if exit_number == 1:
            batch = {name: self.inputs[row] for row, name in enumerate(self.fields)}
            self.states[0] = self.network.embed({**batch, "attention_mask": self.mask.view(torch.bool)})
        state = self.states[exit_number - 1]
        assert state is not None
        self.states[exit_number] = self.network.advance(exit_number, state)

    def _decide(self, exit_number: int) -> None:
        state = self.states[exit_number]
        assert state is not None
        if self.fused is not None:
            self.has_score = self.fused.rule.has_score
            self.fused.run(exit_number, state, self.answers[exit_number])
            return
        memory = next((m for m in reversed(self.memories[:exit_number]) if m is not None), None)
        if memory is None:
            memory = self.memories[0] = self.policy.start(1, self.network.num_exits, state.hidden_states.device)
        packed, memory, self.has_score = self.say(exit_number, state, memory)
        self.memories[exit_number] = memory
        self.answers[exit_number].copy_(packed, non_blocking=True)

    def _say(self, exit_number: int, state: BackboneState, memory: ExitState) -> tuple[Tensor, ExitState, bool]:
        """Leaves, score and log-probabilities in one tensor, as the network and the policy say."""
        signals = self.network.exit_signals(exit_number, state)
        leaves, memory = self.policy.step(exit_number, signals, memory)
        score = self.policy.score(memory)
        given = self.policy.output(exit_number, signals, memory).double()
        shown = given[:, 0] if score is None else score.double()
        return torch.cat([leaves.double(), shown, given[0]]), memory, score is not None

    def _fused(self, device: torch.device) -> FusedDecisions | None:
        """The kernels, if they say at every exit what the network says."""
        fused = fused_decisions(self.network, self.policy, device)
        if fused is None:
            return None
        for fused.is_direct in (True, False):
            try:
                apart = self._apart(fused, device)
            except Exception as error:  # Triton and its compiler fail in many ways; the network's own head works
                found = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
            else:
                if apart <= 1:
                    return fused
                found = f"they are {apart:.2g} tolerances from the network's"
            logger.warning("fused heads%s: %s", ", writing to the host" if fused.is_direct else "", found)
        return None

    def _apart(self, fused: FusedDecisions, device: torch.device) -> float:
        """How far what the kernels say is from what the network says, on the made-up sample, in tolerances."""
        memory = self.policy.start(1, self.network.num_exits, device)
        largest = 0.0
        for exit_number in range(1, self.network.num_exits + 1):
            self._run_layers(exit_number)
            state = self.states[exit_number]
            assert state is not None
            self.answers[exit_number] = np.nan
            fused.run(exit_number, state, self.answers[exit_number])
            expected, memory, _ = self._say(exit_number, state, memory)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if exit_number == 1 and fused.is_direct and not self._stages(fused, device):
                return float("inf")
            apart = (self.answers[exit_number, 2:] - expected[2:].cpu()).abs().max()
            tolerance = TOLERANCE.get(state.hidden_states.dtype, 1e-3) * (1 + float(expected[2:].abs().max()))
            largest = max(largest, float(apart.nan_to_num(nan=1e9)) / tolerance)
        return largest

    def _stages(self, fused: FusedDecisions, device: torch.device) -> bool:
        """Whether the kernel brings the inputs to the device."""
        made_up = torch.arange(self.staging.numel()).view_as(self.staging) % 3
        self.staging.copy_(made_up)
        try:
            fused.stage(self.staging, self.inputs, self.mask)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            mask = (made_up[-1] != 0).byte()
            return torch.equal(self.inputs.cpu(), made_up) and torch.equal(self.mask.cpu(), mask)
        finally:  # a lane goes on without the kernel, and takes the mask that it last staged for what is there
            self.staging.fill_(1)
            self.inputs.copy_(self.staging)
            self.mask.fill_(1)

    def load(self, batch: dict[str, Tensor]) -> None:
        """Puts a batch of one without padding where the graphs read it; nothing of the lane may be under way."""
        self.recorder.wait()
        tokens = batch["input_ids"].shape[1]
        for row, fill, name in self.rows:
            row[:tokens] = batch[name].numpy()[0]
            if tokens < self.length:
                row[tokens:] = fill
        if tokens != self.tokens:
            self.staged[-1, :tokens] = 1
            self.staged[-1, tokens:] = 0
            self.tokens = tokens
        self.seen.fill(np.nan)

    def run(self, batch: dict[str, Tensor]) -> tuple[int, Tensor, Tensor | None]:
        """Exit, log-probabilities and score of a batch of one without padding, on the CPU."""
        self.recorder.enter()
        self.load(batch)
        for start, asked in self.steps:
            start()
            for exit_number, row, is_last in asked:
                if self._await(row) or is_last:
                    answer = torch.from_numpy(row.copy())
                    return exit_number, answer[None, 2:], answer[1:2] if self.has_score else None
        raise AssertionError("the last exit answers everybody")

    def _await(self, row: Any) -> bool:
        """Looks at an answer until all of it is there."""
        deadline: float | None = None
        while True:
            for _ in range(LOOKS):
                leaves = row[0]
                if leaves == leaves and not [value for value in row.tolist() if value != value]:
                    return bool(leaves)
            now = time.monotonic()
            deadline = now + PATIENCE_SECONDS if deadline is None else deadline
            if now > deadline:  # the network itself says NaN, or the queue is stuck, which waiting tells
                self.recorder.wait()
                return bool(row[0] == row[0] and row[0])
