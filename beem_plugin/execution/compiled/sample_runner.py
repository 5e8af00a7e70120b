"""One sample at a time through captured graphs of all lengths in use."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping

import numpy as np
import torch

from beem_plugin.execution.compiled.capture import CaptureError, Recorder
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.compiled.sample_graphs import Result, SampleGraphs

try:
    from torch._C import _cuda_getCurrentRawStream as get_raw_stream
except ImportError:  # a torch without CUDA
    get_raw_stream = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)


class SampleRunner:
    """
    The graphs of all lengths in use, captured on first use. There are two for each length, used in turns: when a sample
    exits, the layers that were launched ahead finish on their own stream while the next sample starts on the other.
    Graphs that may run at the same time share no memory pool and no stream, hence no workspace.
    """

    def __init__(
        self,
        network: CompiledNetwork,
        length_bucket: int,
        max_lengths: int,
        check_every: int,
        lookahead: bool,
        make_recorder: Callable[[], Recorder],
    ) -> None:
        self.network, self.length_bucket, self.max_lengths = network, length_bucket, max_lengths
        self.check_every, self.lookahead = check_every, lookahead
        self.recorders = [make_recorder() for _ in range(2 if lookahead else 1)]
        self.graphs: OrderedDict[tuple[int, tuple[str, ...]], list[SampleGraphs]] = OrderedDict()
        self.failure = network.obstacle
        if self.failure is not None:
            logger.warning("CUDA graphs are not used: %s", self.failure)
        self.turn = 0
        self._known_stream: torch.cuda.Stream | None = None

    def run(self, sample: Mapping[str, np.ndarray]) -> Result | None:
        """The result of a sample, `(tokens,)` int64 each; `None` where capturing is not possible."""
        if self.failure is not None:
            return None
        previous = self._current_stream() if self.network.device.type == "cuda" else None
        try:
            graphs = self._graphs_for(sample)
            self.turn += 1
            return graphs[self.turn % len(graphs)].run(sample)
        except CaptureError as error:
            self.failure = str(error)
            self.graphs.clear()
            logger.warning("CUDA graphs are not used, layers are launched one by one: %s", error)
            return None
        finally:
            if previous is not None:
                torch.cuda.set_stream(previous)

    def _current_stream(self) -> torch.cuda.Stream:
        """`torch.cuda.current_stream()`, which takes longer than the launch of a graph, unless it has not changed."""
        known, device = self._known_stream, torch.cuda.current_device()
        if known is None or known.device_index != device or known.cuda_stream != get_raw_stream(device):
            known = self._known_stream = torch.cuda.current_stream()
        return known

    def wait(self) -> None:
        """Blocks until layers that were launched ahead are done; they read the network's weights."""
        for recorder in self.recorders:
            recorder.wait()

    def _graphs_for(self, sample: Mapping[str, np.ndarray]) -> list[SampleGraphs]:
        tokens = len(sample["input_ids"])
        length = -(-tokens // self.length_bucket) * self.length_bucket
        longest = getattr(self.network.backbone, "max_tokens", None)
        if longest is not None:
            length = max(tokens, min(length, longest))
        key = (length, ("input_ids", "token_type_ids") if "token_type_ids" in sample else ("input_ids",))
        if key not in self.graphs:
            self.wait()  # layers launched ahead may still use memory that is freed, or used by the capture
            while len(self.graphs) >= self.max_lengths:
                self.graphs.popitem(last=False)
            self.graphs[key] = [self._capture(*key, recorder) for recorder in self.recorders]
        self.graphs.move_to_end(key)
        return self.graphs[key]

    def _capture(self, length: int, fields: tuple[str, ...], recorder: Recorder) -> SampleGraphs:
        try:
            return SampleGraphs(self.network, length, fields, recorder, self.check_every, self.lookahead)
        except RuntimeError as error:
            first_line = (str(error).splitlines() or [""])[0]
            raise CaptureError(f"capturing length {length} failed: {first_line}") from error
