"""Low latency: one sample at a time."""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import check_at_least, check_choice, first_line
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.compiled.capture import CaptureError, CudaRecorder, Recorder
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.compiled.sample_graphs import Result, SampleGraphs
from beem_plugin.execution.engine import Engine, ExecutedBatch
from beem_plugin.execution.stepped_network import SteppedNetwork
from beem_plugin.exits.policy import ExitPolicy

try:
    from torch._C import _cuda_getCurrentRawStream as get_raw_stream
except ImportError:  # a torch without CUDA
    get_raw_stream = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

HEADS = ("fused", "compiled", "plain")


@Engine.register("single")
@dataclass(eq=False)
class Single(Engine):
    """
    Low latency: runs sample by sample, without padding, until the sample exits.

    On a GPU, where launching a layer's kernels one by one takes longer than computing them, layers, heads and policy
    steps are captured as CUDA graphs, cut where the policy can let samples exit, for lengths that are multiples of
    `length_bucket`. The policy is stepped beside the next exit's layers and writes its results where the host sees
    them; layers computed in vain finish while the next sample starts. Where capturing fails, the reason is logged and
    layers run uncaptured.

    Heads of exits where no sample can exit, and whose output the policy does not use later, are not computed.

    Registered as an `Engine` with name "single".

    # Parameters

    length_bucket : `int`, optional (default = `16`)
        Captured lengths are multiples of this.
    max_lengths : `int`, optional (default = `16`)
        Number of captured lengths that are held; the least recently used is dropped.
    capture : `bool`, optional (default = `True`)
        Whether to capture graphs on a GPU.
    lookahead : `bool`, optional (default = `True`)
        Whether, with captured graphs, the next exit's layers start before the decision is known.
    check_every : `int`, optional (default = `1`)
        Number of exits, of those where samples can exit, that share a captured graph. A result is seen as soon as it is
        there, but the graph runs to its end.
    heads : `str`, optional (default = `"fused"`)
        How the policy is stepped on a GPU: `"fused"`, by a kernel generated from the policy, or torch operations where
        there is none; `"plain"`, by torch operations. `"compiled"` is an alias of `"fused"`.
    plain_numbers : `bool`, optional (default = `True`)
        Has no effect; accepted for configs of earlier releases.
    """

    length_bucket: int = 16
    max_lengths: int = 16
    capture: bool = True
    lookahead: bool = True
    check_every: int = 1
    heads: str = "fused"
    plain_numbers: bool = True

    def __post_init__(self) -> None:
        options = {name: getattr(self, name) for name in ("length_bucket", "max_lengths", "check_every")}
        check_at_least(1, **options)
        check_choice("heads", self.heads, HEADS)
        self.policy_kernel = self.heads != "plain"
        self._runner: SampleRunner | None = None

    @torch.inference_mode()
    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
    ) -> Iterator[ExecutedBatch]:
        compiled = self.prepare(network, policy)
        runner = None
        if self.capture and not policy.adapts and self._captures(compiled.device):
            if self._runner is None or self._runner.network is not compiled:
                self._runner = None  # frees its memory first
                self._runner = SampleRunner(compiled, self)
            runner = self._runner
        try:
            for batch in batches:
                results = []
                for sample in samples_of(batch):
                    results.append(run_sample(compiled, runner, sample))
                    if policy.adapts:
                        last = joined(results[-1:], compiled.output_per_token)
                        policy.observe(last.exits, last.log_probabilities)
                if results:
                    yield ExecutedBatch(batch.index, joined(results, compiled.output_per_token))
        finally:
            if runner is not None:
                runner.wait()

    def _captures(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def _recorder(self, device: torch.device) -> Recorder:
        return CudaRecorder(device)


class SampleRunner:
    """
    The graphs of all lengths in use, captured on first use. There are two for each length, used in turns: when a sample
    exits, the layers that were launched ahead finish on their own stream while the next sample starts on the other.
    Graphs that may run at the same time share no memory pool and no stream, hence no workspace.
    """

    def __init__(self, network: CompiledNetwork, options: Single) -> None:
        self.network, self.bucket, self.max_lengths = network, options.length_bucket, options.max_lengths
        self.check_every, self.lookahead = options.check_every, options.lookahead
        self.recorders = [options._recorder(network.device) for _ in range(2 if options.lookahead else 1)]
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
        length = -(-tokens // self.bucket) * self.bucket
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
            raise CaptureError(f"capturing length {length} failed: {first_line(error)}") from error


def samples_of(batch: RaggedBatch) -> Iterator[dict[str, np.ndarray]]:
    """The tokens of each sample, without padding."""
    fields = [(name, value.numpy()) for name, value in batch.tokens.items()]
    for start, length in zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True):
        yield {name: value[start : start + length] for name, value in fields}


def run_sample(network: CompiledNetwork, runner: SampleRunner | None, sample: dict[str, np.ndarray]) -> Result:
    result = None if runner is None else runner.run(sample)
    if result is not None:
        return result
    policy = network.policy
    state = network.embed({name: torch.from_numpy(value)[None].to(network.device) for name, value in sample.items()})
    memory = policy.start(1, network.num_exits, network.device)
    for exit_number in range(1, network.num_exits + 1):
        state = network.advance(exit_number, state)
        if not network.needed[exit_number]:
            continue
        signals = network.exit_signals(exit_number, state)
        exits, memory = policy.checked_step(exit_number, signals, memory)
        if network.can_exit[exit_number] and exits.item():
            break
    score = policy.score(memory)
    return exit_number, None if score is None else score.item(), policy.output(exit_number, signals, memory)[0].tolist()


def joined(results: list[Result], per_token: bool) -> ExitDecisions:
    """The results of one or more samples."""
    exits, scores, outputs = zip(*results, strict=True)
    if per_token:
        longest = max(map(len, outputs))
        outputs = tuple([*row, *[-1] * (longest - len(row))] for row in outputs)
    found = None if scores[0] is None else torch.from_numpy(np.array(scores, dtype=np.float64))
    output = torch.from_numpy(np.array(outputs, dtype=np.float64))  # (samples, labels or tokens)
    return ExitDecisions.of_output(torch.from_numpy(np.array(exits, dtype=np.int64)), output, found, per_token)
