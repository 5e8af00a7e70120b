"""Throughput: all samples of a window at the same depth, in full batches."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import check_at_least, check_number
from beem_plugin.common.transfer import HostCopy, to_device
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.chunks import Chunk, Layout, PackedLayout, windows
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.engine import Engine, ExecutedBatch
from beem_plugin.execution.exit_tracker import ExitTracker
from beem_plugin.execution.padded_chunks import PaddedLayout
from beem_plugin.execution.read_ahead import ReadAhead
from beem_plugin.execution.stepped_network import SteppedNetwork
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals

TOKENS_PER_CHUNK = {"cuda": 131072, "cpu": 512}
CHUNKS_PER_WINDOW = {"cuda": 8, "cpu": 64}
CALL_TOKENS = {"cuda": 8192, "cpu": 32}
MIN_LEAVING = {"cuda": 0.1, "cpu": 0.02}
WINDOWS_IN_FLIGHT = {"cuda": 3, "cpu": 1}
GROWTH = 4
"""On a GPU the first window is one chunk, because it must be read before anything can be computed."""


@Engine.register("depth_pools")
class DepthPools(Engine):
    """
    Breadth first. The input is read in windows. The samples of a window are sorted by length and computed from exit to
    exit together, in chunks of `tokens_per_chunk`. Samples that exit are removed and new full chunks are made of the
    others, so that a layer call is a full batch as long as the window has enough active samples. Hidden states are
    copied only when at least `min_leaving` of the tokens belong to samples that have exited.

    The policy is stepped once for all samples of a window. On a GPU several windows are in flight: the host reads the
    exit decisions of one while others are computed, and a thread reads and sorts the next. Memory is bounded by the
    windows. A window's results are returned when it is done, in the order of the input.

    On a GPU in half precision, samples of up to 128 tokens are packed, that is, computed without padding, if the
    backbone has a packed form (see `backbones/inference.py`).

    Heads of exits where no sample can exit, and whose output the policy does not use later, are not computed.

    Registered as an `Engine` with name "depth_pools".

    # Parameters

    tokens_per_chunk : `int`, optional (default = 131,072 on a GPU, 512 on a CPU)
        Tokens of a layer call.
    window_tokens : `int`, optional (default = 8 chunks on a GPU, 64 on a CPU)
        Tokens of a window. On a GPU the first windows are smaller.
    min_leaving : `float`, optional (default = 0.1 on a GPU, 0.02 on a CPU)
        The share of a window's tokens that must have exited before hidden states are copied.
    call_tokens : `int`, optional (default = 8,192 on a GPU, 32 on a CPU)
        The fixed cost of a layer call, as the number of tokens computed in the same time. Padding is weighed against it
        when chunks are made; packed samples have no padding.
    windows_in_flight : `int`, optional (default = 3 on a GPU, 1 on a CPU)
    use_kernels : `bool`, optional (default = `True`)
        Whether, on a GPU, blocks, token means and policy steps may run in kernels of this package.
    """

    def __init__(
        self,
        tokens_per_chunk: int | None = None,
        window_tokens: int | None = None,
        min_leaving: float | None = None,
        call_tokens: int | None = None,
        windows_in_flight: int | None = None,
        use_kernels: bool = True,
    ) -> None:
        check_at_least(
            1, tokens_per_chunk=tokens_per_chunk, window_tokens=window_tokens, windows_in_flight=windows_in_flight
        )
        check_number("min_leaving", min_leaving or 0.0, high=1, open_high=True)
        check_at_least(0, call_tokens=call_tokens)
        self.tokens_per_chunk = tokens_per_chunk
        self.window_tokens = window_tokens
        self.min_leaving = min_leaving
        self.call_tokens = call_tokens
        self.windows_in_flight = windows_in_flight
        self.use_kernels = None if use_kernels else False

    @torch.inference_mode()
    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
    ) -> Iterator[ExecutedBatch]:
        compiled = self.prepare(network, policy)
        device = compiled.device
        kind = "cuda" if device.type == "cuda" else "cpu"
        chunk_tokens = self.tokens_per_chunk or TOKENS_PER_CHUNK[kind]
        chunks = 1 if policy.adapts else CHUNKS_PER_WINDOW[kind]  # it learns after each window
        window_tokens = self.window_tokens or chunk_tokens * chunks
        call_tokens = CALL_TOKENS[kind] if self.call_tokens is None else self.call_tokens
        min_leaving = MIN_LEAVING[kind] if self.min_leaving is None else self.min_leaving
        in_flight = 1 if policy.adapts else self.windows_in_flight or WINDOWS_IN_FLIGHT[kind]

        def start(samples: RaggedBatch) -> Generator[None, None, ExitDecisions]:
            return pool(compiled, samples, chunk_tokens, call_tokens, min_leaving)

        def by_length(read: Iterator[RaggedBatch]) -> Iterator[RaggedBatch]:
            return (window.select(window.lengths.argsort(stable=True)).to(device) for window in read)

        if kind == "cpu":
            read = by_length(windows(batches, window_tokens))
            yield from take_turns(read, start, in_flight, lambda: True, policy.observe)
            return
        read_ahead = ReadAhead(by_length(windows(batches, window_tokens, chunk_tokens, GROWTH, True)))
        try:
            yield from take_turns(read_ahead, start, in_flight, lambda: read_ahead.is_ready, policy.observe)
        finally:
            read_ahead.close()


def take_turns(
    read: Iterator[RaggedBatch],
    start: Callable[[RaggedBatch], Generator[None, None, ExitDecisions]],
    in_flight: int,
    is_ready: Callable[[], bool],
    observe: Callable[[Tensor, Tensor], None],
) -> Iterator[ExecutedBatch]:
    """Advances up to `in_flight` windows in turns, one exit each; the next is waited for only without another."""
    flights: deque[tuple[RaggedBatch, Generator[None, None, ExitDecisions]]] = deque()
    has_more = True
    while True:
        while has_more and len(flights) < in_flight and (not flights or is_ready()):
            window = next(read, None)
            has_more = window is not None
            if window is not None:
                steps = start(window)
                next(steps)
                flights.append((window, steps))
        if not flights:
            return
        window, steps = flights.popleft()
        try:
            next(steps)
        except StopIteration as stop:
            order = window.index.argsort()
            done = ExecutedBatch(window.index[order], stop.value[order])
            observe(done.decisions.exits, done.decisions.log_probabilities)
            yield done
        else:
            flights.append((window, steps))


def pool(
    network: CompiledNetwork, samples: RaggedBatch, tokens_per_chunk: int, call_tokens: int, min_leaving: float
) -> Generator[None, None, ExitDecisions]:
    """Yields when an exit's work is queued, so that other windows are computed; returns `samples`' decisions."""
    layout: Layout = PaddedLayout(network, tokens_per_chunk, call_tokens)
    if network.can_pack(int(samples.lengths[-1])):
        layout = PackedLayout(network, tokens_per_chunk)
    device = network.device
    tracker = ExitTracker(network, len(samples), int(samples.lengths[-1]))
    # Chunks are made one by one: the device computes the first while the host prepares the next.
    made = layout.first(samples)
    for exit_number in range(1, network.num_exits + 1):
        chunks = []
        for chunk in made:
            chunk.state = network.advance(exit_number, chunk.state)
            chunks.append(chunk)
        made = iter(chunks)
        if network.needed[exit_number]:
            tracker.step(exit_number, signals_of(network, exit_number, chunks))
        if not network.can_exit[exit_number]:
            continue
        copied = HostCopy(tracker.exited)
        yield
        exited = copied.read()
        lengths = torch.cat([chunk.lengths for chunk in chunks])
        leaving = int(lengths[exited].sum())
        if bool(exited.all()):
            break
        if leaving == 0 or leaving < min_leaving * int(lengths.sum()):
            continue
        kept = (~exited).nonzero().squeeze(1)
        kept_on_device = to_device(kept, device)
        tracker.keep(kept_on_device)
        made = layout.repack(chunks, kept, kept_on_device)
    fetched = tracker.fetch()
    yield
    return tracker.decisions(fetched)


def signals_of(network: CompiledNetwork, exit_number: int, chunks: Sequence[Chunk]) -> ExitSignals:
    """The signals of the samples of all chunks."""
    found = [network.exit_signals(exit_number, chunk.state) for chunk in chunks]
    return found[0] if len(found) == 1 else type(found[0]).join(found)
