"""
One sample at a time through captured CUDA graphs: the lanes of all lengths in use.

When a sample leaves, the layers that were started in vain finish on their own stream while the next sample starts on
the other lane. Graphs that may run at the same time share no memory pool and no stream, hence no workspace.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones.untouched import version_of
from beem_plugin.execution.engine import SteppedNetwork
from beem_plugin.execution.lane import Lane
from beem_plugin.execution.recorder import CudaRecorder, Recorder
from beem_plugin.exits.policy import ExitPolicy

logger = logging.getLogger(__name__)


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
    check_every : `int`, optional (default = `1`)
    heads : `str`, optional (default = `"fused"`)
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
        check_every: int = 1,
        heads: str = "fused",
        make_recorder: Callable[[], Recorder] | None = None,
    ) -> None:
        self.network, self.policy, self.device = network, policy, device
        self.length_bucket, self.max_lengths, self.lookahead = length_bucket, max_lengths, lookahead
        self.check_every, self.heads = check_every, heads
        make_recorder = make_recorder or (lambda: CudaRecorder(device))
        self.recorders = [make_recorder() for _ in range(2 if lookahead else 1)]
        self.baked = fingerprint(network, policy)
        self.lanes: OrderedDict[tuple[Any, ...], list[Lane]] = OrderedDict()
        self.failure: str | None = getattr(network, "obstacle", None)
        if self.failure is not None:
            logger.warning("CUDA graphs are not used, layers are launched one by one: %s", self.failure)
        self.turn = 0
        self._known_stream: torch.cuda.Stream | None = None

    def serves(self, network: SteppedNetwork, policy: ExitPolicy) -> bool:
        """Whether graphs captured here still say what `network` and `policy` say."""
        if network is not self.network or fingerprint(network, policy) != self.baked:
            return False
        self.policy = policy  # an equal one: the other may be changed before the next length is captured
        return True

    def run(self, batch: dict[str, Tensor]) -> tuple[int, Tensor, Tensor | None] | None:
        """The answer for a batch of one, or `None` if graphs cannot be had."""
        if self.failure is not None:
            return None
        previous = self._current_stream() if self.device.type == "cuda" else None
        try:
            lanes = self._lanes_for(batch)
            self.turn += 1
            return lanes[self.turn % len(lanes)].run(batch)
        except CaptureError as error:
            self.failure = str(error)
            self.lanes.clear()
            logger.warning("CUDA graphs are not used, layers are launched one by one: %s", error)
            return None
        finally:
            if previous is not None:
                torch.cuda.set_stream(previous)

    def _current_stream(self) -> torch.cuda.Stream:
        """As torch says it, which makes an object each time and takes longer for that than for starting a graph."""
        known, raw = self._known_stream, getattr(torch._C, "_cuda_getCurrentRawStream", None)
        device = torch.cuda.current_device()
        if known is None or raw is None or known.device_index != device or known.cuda_stream != raw(device):
            known = self._known_stream = torch.cuda.current_stream()
        return known

    def _lanes_for(self, batch: dict[str, Tensor]) -> list[Lane]:
        tokens = batch["input_ids"].shape[1]
        length = -(-tokens // self.length_bucket) * self.length_bucket
        longest = getattr(self.network.backbone, "max_tokens", None)
        if longest is not None:
            length = max(tokens, min(length, longest))
        fields = ("input_ids", "token_type_ids") if "token_type_ids" in batch else ("input_ids",)
        key = (length, fields)
        if key not in self.lanes:
            while len(self.lanes) >= self.max_lengths:
                self._forget_oldest()
            if self.device.type == "cuda":
                torch.cuda.synchronize()  # layers started in vain may still run in memory that capturing reuses
            self.lanes[key] = [self._capture(length, fields, recorder) for recorder in self.recorders]
        self.lanes.move_to_end(key)
        return self.lanes[key]

    def _forget_oldest(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # layers that were started in vain may still run in its buffers
        self.lanes.popitem(last=False)

    def _capture(self, length: int, fields: tuple[str, ...], recorder: Recorder) -> Lane:
        try:
            return Lane(
                self.network,
                self.policy,
                length,
                fields,
                self.device,
                recorder,
                self.check_every,
                self.lookahead,
                self.heads,
            )
        except RuntimeError as error:
            raise CaptureError(f"capturing length {length} failed: {str(error).splitlines()[0]}") from error


class CaptureError(Exception):
    """A graph could not be captured; layers can still run without."""


def fingerprint(network: SteppedNetwork, policy: ExitPolicy) -> tuple[Any, ...]:
    """What captured graphs hold beside the structure of the network: where its weights lie, the policy's numbers."""
    numbers = numbers_of(policy)
    # A policy that cannot be written down is its own identity.
    numbers = str(id(policy)) if numbers is None else numbers
    # Written to: some of what is captured are copies.
    weights = [(parameter.data_ptr(), version_of(parameter)) for parameter in network.parameters()]
    return hash(tuple(weights)), numbers


def numbers_of(policy: ExitPolicy) -> str | None:
    """All that the policy decides by; `None` for one that cannot be written down."""
    try:
        return json.dumps(policy.to_config(), sort_keys=True, default=str)
    except TypeError:
        return None
