"""
One sample at a time through captured CUDA graphs.

A lane holds static buffers for one sample of one padded length, and two graphs an exit: its layers, on the lane's main
stream, and its head and policy step, on a side stream. Launched in this order, the decision about exit e is computed,
copied and read while the layers of exit e + 1 run:

    main   layers 1   | layers 2   | layers 3  ...
    side              | decision 1 | decision 2 ...

When a sample leaves, the layers that were started in vain finish on their own stream while the next sample starts on
the other lane. Graphs that may run at the same time share no memory pool and no stream, hence no workspace.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.execution.engine import SteppedNetwork
from beem_plugin.execution.samples import pad_token_of
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.state import ExitState

logger = logging.getLogger(__name__)

WARM_UPS = 2  # kernels, workspaces and tuned choices are made on first use, which must not be part of a graph


class Recorder(Protocol):
    """Where a lane's work is queued. `main` and `side` are the two queues."""

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor: ...

    def capture(self, work: Callable[[], None], side: bool) -> Callable[[], None]: ...

    def use(self, side: bool) -> None: ...

    def main_done(self, exit_number: int) -> None: ...

    def side_waits(self, exit_number: int) -> None: ...

    def side_done(self, exit_number: int) -> None: ...

    def main_waits_for_side(self) -> None: ...

    def host_waits(self, exit_number: int) -> None: ...


class CudaRecorder:
    """
    Two streams and their memory pools, shared by the lanes of all lengths, of which one runs at a time.

    # Parameters

    device : `torch.device`
    num_exits : `int`
    """

    def __init__(self, device: torch.device, num_exits: int) -> None:
        self.streams = (torch.cuda.Stream(device), torch.cuda.Stream(device))
        self.pools = (torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle())
        self.layers_ran = [torch.cuda.Event() for _ in range(num_exits)]
        self.decided = [torch.cuda.Event() for _ in range(num_exits)]

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, pin_memory=True)

    def capture(self, work: Callable[[], None], side: bool) -> Callable[[], None]:
        stream = self.streams[side]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pools[side], stream=stream, capture_error_mode="thread_local"):
            work()
        graph.replay()  # what the work left in the static buffers is now there, for the capture of the next graph
        torch.cuda.synchronize()
        return graph.replay

    def use(self, side: bool) -> None:
        torch.cuda.set_stream(self.streams[side])

    def main_done(self, exit_number: int) -> None:
        self.layers_ran[exit_number - 1].record(self.streams[0])

    def side_waits(self, exit_number: int) -> None:
        self.streams[1].wait_event(self.layers_ran[exit_number - 1])

    def side_done(self, exit_number: int) -> None:
        self.decided[exit_number - 1].record(self.streams[1])

    def main_waits_for_side(self) -> None:
        self.streams[0].wait_stream(self.streams[1])

    def host_waits(self, exit_number: int) -> None:
        self.decided[exit_number - 1].synchronize()


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
    """

    def __init__(
        self,
        network: SteppedNetwork,
        policy: ExitPolicy,
        length: int,
        fields: tuple[str, ...],
        device: torch.device,
        recorder: Recorder,
    ) -> None:
        self.network, self.policy, self.recorder = network, policy, recorder
        self.fields, self.length = fields, length
        self.pad_token_id = pad_token_of(network)
        exits = network.num_exits
        self.staging = recorder.pinned(len(fields) + 1, 1, length, dtype=torch.int64)
        self.staging.fill_(1)
        self.inputs = self.staging.to(device)
        self.states: list[BackboneState | None] = [None] * (exits + 1)
        self.memories: list[ExitState | None] = [None] * (exits + 1)
        self.packed: list[Tensor | None] = [None] * (exits + 1)
        self.has_score = False
        # One row an exit: leaves, score, log-probabilities.
        self.answers = recorder.pinned(exits + 1, 2 + network.num_labels, dtype=torch.float64)
        self.layers: list[Callable[[], None]] = []
        self.decisions: list[Callable[[], None]] = []
        for exit_number in range(1, exits + 1):
            self.layers.append(recorder.capture(partial(self._run_layers, exit_number), side=False))
            self.decisions.append(recorder.capture(partial(self._decide, exit_number), side=True))

    def _run_layers(self, exit_number: int) -> None:
        if exit_number == 1:
            names = (*self.fields, "attention_mask")
            self.states[0] = self.network.embed({name: self.inputs[row] for row, name in enumerate(names)})
        state = self.states[exit_number - 1]
        assert state is not None
        self.states[exit_number] = self.network.advance(exit_number, state)

    def _decide(self, exit_number: int) -> None:
        state = self.states[exit_number]
        assert state is not None
        if exit_number == 1:
            self.memories[0] = self.policy.start(1, self.network.num_exits, state.hidden_states.device)
        memory = self.memories[exit_number - 1]
        assert memory is not None
        signals = self.network.exit_signals(exit_number, state)
        leaves, memory = self.policy.step(exit_number, signals, memory)
        score = self.policy.score(memory)
        self.has_score = score is not None
        given = self.policy.output(exit_number, signals, memory).double()
        score = given[:, 0] if score is None else score.double()
        self.memories[exit_number] = memory
        self.packed[exit_number] = torch.cat([leaves.double(), score, given[0]])

    def _launch_layers(self, exit_number: int) -> None:
        self.recorder.use(side=False)
        self.layers[exit_number - 1]()
        self.recorder.main_done(exit_number)

    def _launch_decision(self, exit_number: int) -> None:
        self.recorder.use(side=True)
        self.recorder.side_waits(exit_number)
        self.decisions[exit_number - 1]()
        packed = self.packed[exit_number]
        assert packed is not None
        self.answers[exit_number].copy_(packed, non_blocking=True)
        self.recorder.side_done(exit_number)

    def _load(self, batch: dict[str, Tensor]) -> None:
        # The copy of the sample before has been read: its first decision came after it.
        tokens = batch["input_ids"].shape[1]
        for row, name in enumerate(self.fields):
            self.staging[row, 0, :tokens] = batch[name][0]
            self.staging[row, 0, tokens:] = self.pad_token_id if name == "input_ids" else 0
        self.staging[-1, 0, :tokens] = 1
        self.staging[-1, 0, tokens:] = 0
        self.recorder.use(side=False)
        self.recorder.main_waits_for_side()
        self.inputs.copy_(self.staging, non_blocking=True)

    def run(self, batch: dict[str, Tensor], lookahead: bool) -> tuple[int, Tensor, Tensor | None]:
        """Exit, log-probabilities and score of a batch of one without padding, on the CPU."""
        last = self.network.num_exits
        self._load(batch)
        self._launch_layers(1)
        self._launch_decision(1)
        exit_number = 1
        while True:
            if lookahead and exit_number < last:
                self._launch_layers(exit_number + 1)
            self.recorder.host_waits(exit_number)
            if exit_number == last or self.answers[exit_number, 0].item() != 0:
                break
            if not lookahead:
                self._launch_layers(exit_number + 1)
            exit_number += 1
            self._launch_decision(exit_number)
        answer = self.answers[exit_number].clone()
        return exit_number, answer[None, 2:], answer[1:2] if self.has_score else None


class CapturedLanes:
    """
    The lanes of all lengths in use, two a length, captured on first use.

    # Parameters

    network : `SteppedNetwork`
    policy : `ExitPolicy`
        Bound; its numbers become part of the graphs.
    device : `torch.device`
    length_bucket, max_lengths : `int`
    lookahead : `bool`
    make_recorder : `Callable[[], Recorder]`, optional (default = CUDA graphs on `device`)
    """

    def __init__(
        self,
        network: SteppedNetwork,
        policy: ExitPolicy,
        device: torch.device,
        length_bucket: int,
        max_lengths: int,
        lookahead: bool,
        make_recorder: Callable[[], Recorder] | None = None,
    ) -> None:
        self.network, self.policy, self.device = network, policy, device
        self.length_bucket, self.max_lengths, self.lookahead = length_bucket, max_lengths, lookahead
        make_recorder = make_recorder or (lambda: CudaRecorder(device, network.num_exits))
        self.recorders = [make_recorder() for _ in range(2 if lookahead else 1)]
        self.baked = fingerprint(network, policy)
        self.lanes: OrderedDict[tuple[Any, ...], list[Lane]] = OrderedDict()
        self.failure: str | None = None
        self.turn = 0

    def serves(self, network: SteppedNetwork, policy: ExitPolicy) -> bool:
        """Whether graphs captured here still say what `network` and `policy` say."""
        return network is self.network and fingerprint(network, policy) == self.baked

    def run(self, batch: dict[str, Tensor]) -> tuple[int, Tensor, Tensor | None] | None:
        """The answer for a batch of one, or `None` if graphs cannot be had."""
        if self.failure is not None:
            return None
        previous = torch.cuda.current_stream() if self.device.type == "cuda" else None
        try:
            lanes = self._lanes_for(batch)
            self.turn += 1
            return lanes[self.turn % len(lanes)].run(batch, self.lookahead)
        except CaptureError as error:
            self.failure = str(error)
            self.lanes.clear()
            logger.warning("CUDA graphs are not used, layers are launched one by one: %s", error)
            return None
        finally:
            if previous is not None:
                torch.cuda.set_stream(previous)

    def _lanes_for(self, batch: dict[str, Tensor]) -> list[Lane]:
        tokens = batch["input_ids"].shape[1]
        length = -(-tokens // self.length_bucket) * self.length_bucket
        longest = getattr(self.network.backbone, "max_tokens", None)
        if longest is not None:
            length = max(tokens, min(length, longest))
        fields = tuple(name for name in ("input_ids", "token_type_ids") if name in batch)
        key = (length, fields)
        if key not in self.lanes:
            while len(self.lanes) >= self.max_lengths:
                self._forget_oldest()
            self.lanes[key] = [self._capture(length, fields, recorder) for recorder in self.recorders]
        self.lanes.move_to_end(key)
        return self.lanes[key]

    def _forget_oldest(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # layers that were started in vain may still run in its buffers
        self.lanes.popitem(last=False)

    def _capture(self, length: int, fields: tuple[str, ...], recorder: Recorder) -> Lane:
        try:
            return Lane(self.network, self.policy, length, fields, self.device, recorder)
        except RuntimeError as error:
            raise CaptureError(f"capturing length {length} failed: {str(error).splitlines()[0]}") from error


class CaptureError(Exception):
    """A graph could not be captured; layers can still run without."""


def fingerprint(network: SteppedNetwork, policy: ExitPolicy) -> tuple[Any, ...]:
    """What captured graphs hold beside the structure of the network: where its weights lie, the policy's numbers."""
    try:
        numbers = json.dumps(policy.to_config(), sort_keys=True, default=str)
    except TypeError:  # a policy that cannot be written down is its own identity
        numbers = str(id(policy))
    weights = [parameter.data_ptr() for parameter in network.parameters()]
    return hash(tuple(weights)), numbers
