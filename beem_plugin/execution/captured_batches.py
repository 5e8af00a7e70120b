"""Whole batches through captured CUDA graphs: the lanes of all lengths in use."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.execution.batch_decider import Decider
from beem_plugin.execution.batch_lane import BatchLane, Graphs
from beem_plugin.execution.batch_rows import Rows, length_for, rows_for
from beem_plugin.execution.captured import CaptureError, fingerprint
from beem_plugin.execution.engine import SteppedNetwork
from beem_plugin.execution.recorder import Recorder
from beem_plugin.execution.samples import TOKEN_FIELDS
from beem_plugin.exits.policy import ExitPolicy

logger = logging.getLogger(__name__)

KNOWN_FIELDS = {*TOKEN_FIELDS, "attention_mask", "index", "label"}


class CapturedBatches:
    """
    The lanes of all lengths in use, and their graphs, captured on first use.

    # Parameters

    network : `SteppedNetwork`
        Whose states hold nothing of a sample but what the backbone makes anew of its length.
    policy : `ExitPolicy`
        Bound; its numbers become part of the graphs.
    decider : `Decider`
        Of `network` and `policy`.
    device : `torch.device`
    recorder : `Recorder`
    check_every : `int`, optional (default = `1`)
    min_leaving : `float`, optional (default = `0.0`)
    """

    max_shapes: ClassVar[int] = 64
    """How many lengths times rows are held; the one longest unused makes room."""
    most_tokens: ClassVar[int] = 16384
    """Of a batch, padding included. Larger ones keep a GPU busy without, and would take much memory."""
    worth_capturing: ClassVar[int] = 2
    """As the how many-th batch of its length one is captured: what comes once is sooner done without."""

    def __init__(
        self,
        network: SteppedNetwork,
        policy: ExitPolicy,
        decider: Decider,
        device: torch.device,
        recorder: Recorder,
        check_every: int = 1,
        min_leaving: float = 0.0,
    ) -> None:
        self.network, self.policy, self.decider, self.device = network, policy, decider, device
        self.check_every, self.min_leaving = check_every, min_leaving
        self.recorder = recorder
        self.baked = fingerprint(network, policy)
        self.lanes: dict[tuple[Any, ...], BatchLane] = {}
        self.shapes: OrderedDict[tuple[Any, ...], Graphs] = OrderedDict()
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.capacity = 0
        self.failure: str | None = None

    def serves(self, network: SteppedNetwork, policy: ExitPolicy) -> bool:
        """Whether graphs captured here still say what `network` and `policy` say."""
        if network is not self.network or fingerprint(network, policy) != self.baked:
            return False
        self.policy = policy  # an equal one: the other may be changed before the next length is captured
        return True

    def run(self, batch: dict[str, Tensor], lengths: np.ndarray) -> ExitDecisions | None:
        """
        # Parameters

        batch : `dict[str, Tensor]`
            On the CPU, padded on the right, at least one sample.
        lengths : `np.ndarray`
            `(batch,)` int64: the samples' tokens.

        # Returns

        `ExitDecisions`, optional
            On the CPU; `None` for a batch that is to be run without graphs.
        """
        samples, tokens = batch["input_ids"].shape
        longest = getattr(self.network.backbone, "max_tokens", None)
        if self.failure is not None or not set(batch) <= KNOWN_FIELDS or (longest is not None and tokens > longest):
            return None
        length = length_for(tokens, longest)
        if rows_for(samples, length) * length > self.most_tokens:
            return None
        key = (length, tuple(name for name in TOKEN_FIELDS if name in batch))
        self.seen[key] += 1
        if self.seen[key] < self.worth_capturing:
            return None
        is_gpu = self.device.type == "cuda"
        previous = (torch.cuda.current_stream(), torch.cuda.current_stream(self.device)) if is_gpu else ()
        try:
            self.recorder.enter()
            if previous:
                torch.cuda.current_stream().wait_stream(previous[1])
            rows = Rows(samples, length, self.min_leaving)
            lane = self._lane(key, len(rows))
            here = {name: batch[name].cpu() for name in key[1]}
            return lane.run(here, lengths, rows, lambda count: self._graphs(key, count))
        except CaptureError as error:
            self.failure = str(error)
            self.settle()
            self.lanes.clear()
            self.shapes.clear()
            logger.warning("CUDA graphs are not used, layers are launched one by one: %s", error)
            return None
        finally:
            for stream in reversed(previous):
                torch.cuda.set_stream(stream)

    def settle(self) -> None:
        """Waits for layers that were started in vain, whose weights and memory may be changed or let go then."""
        self.recorder.wait()

    def _lane(self, key: tuple[Any, ...], count: int) -> BatchLane:
        """The buffers for a length, with room for so many rows."""
        length, fields = key
        self.capacity = max(self.capacity, count)
        lane = self.lanes.get(key)
        if lane is not None and lane.capacity >= count:
            return lane
        self.settle()
        for shape in [shape for shape in self.shapes if shape[0] == key]:
            del self.shapes[shape]
        in_use = {shape[0] for shape in self.shapes}
        self.lanes = {other: held for other, held in self.lanes.items() if other in in_use}
        # As many rows as batches have; the last one of a file has fewer.
        capacity = max(count, min(self.capacity, self.most_tokens // length))
        try:
            self.lanes[key] = BatchLane(
                self.network,
                self.policy,
                self.decider,
                length,
                capacity,
                fields,
                self.device,
                self.recorder,
                self.check_every,
            )
        except RuntimeError as error:
            raise CaptureError(f"buffers for length {length}: {str(error).splitlines()[0]}") from error
        return self.lanes[key]

    def _graphs(self, key: tuple[Any, ...], count: int) -> Graphs:
        shape = (key, count)
        if shape not in self.shapes:
            while len(self.shapes) >= self.max_shapes:
                self.settle()
                self.shapes.popitem(last=False)
            self.shapes[shape] = {}
        self.shapes.move_to_end(shape)
        return self.shapes[shape]
