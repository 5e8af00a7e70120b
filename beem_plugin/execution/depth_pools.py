"""Throughput: all samples of a window at the same depth, in full batches, until the window is done."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.engine import Engine, ExecutedBatch, SteppedNetwork, device_of
from beem_plugin.execution.fused_window import WindowKernels, window_kernels
from beem_plugin.execution.pooled_heads import BatchHeads
from beem_plugin.execution.pooling import compare_kernels, pool
from beem_plugin.execution.read_ahead import ahead
from beem_plugin.execution.windows import sorted_windows, windows
from beem_plugin.exits.policy import ExitPolicy

logger = logging.getLogger(__name__)

TOKENS_PER_CHUNK = {"cuda": 131072, "cpu": 512}
GROWTH = 4
"""The first window on a GPU is a chunk, which must be read before there is anything to do; the next ones are larger."""
CHUNKS_PER_WINDOW = {"cuda": 8, "cpu": 64}
CALL_TOKENS = {"cuda": 8192, "cpu": 32}
MIN_LEAVING = {"cuda": 0.05, "cpu": 0.02}
"""On a GPU copying a token's hidden state costs about a twentieth of a layer."""
IN_FLIGHT = {"cuda": 2, "cpu": 1}


@Engine.register("depth_pools")
class DepthPools(Engine):
    """
    Breadth first. The input is read in windows; the samples of a window are sorted by length and brought from exit to
    exit together, in chunks of `tokens_per_chunk`, whatever the size of the batches they came in. Those that leave are
    taken out and full chunks are formed of the others, so that a layer call is a full batch as long as there is enough
    left in the window. Survivors lie next to each other: they are copied only when at least `min_leaving` of the tokens
    still computed belong to samples that have left.

    A window's policy steps are taken together. On a GPU several windows are under way, so that the host reads who has
    left of one while another is computed, and the next window is read and sorted by a thread of its own. Memory is
    bounded by the windows. A window's samples come out in the order of the input when it is done.

    On a GPU in half precision, samples of up to 128 tokens are computed packed, one after the other without padding,
    where `use_kernels` serves and the backbone's blocks are known (see `backbones/packed.py`).

    Heads of exits where the policy cannot let anybody go, and whose answer it does not remember, are not computed.

    Registered as an `Engine` with name "depth_pools".

    # Parameters

    tokens_per_chunk : `int`, optional (default = 131,072 on a GPU, 512 on a CPU)
        Tokens of a layer call.
    window_tokens : `int`, optional (default = 8 chunks on a GPU, 64 on a CPU)
        Tokens of a window; the first ones are smaller, so that the device need not wait for the input to be read.
    min_leaving : `float`, optional (default = 0.05 on a GPU, 0.02 on a CPU)
    call_tokens : `int`, optional (default = 8,192 on a GPU, 32 on a CPU)
        How many tokens more could be computed in the time that one more layer call costs: what padding is weighed
        against when chunks are cut. Packed samples have none.
    windows_in_flight : `int`, optional (default = 2 on a GPU, 1 on a CPU)
        Windows that are under way together.
    use_kernels : `bool`, optional (default = `True`)
        Whether, on a GPU, heads, decisions and the forming of chunks are kernels of our own, where the heads are the
        ordinary ones and the policy is one of those that `single` fuses.
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
        least_one = (
            ("tokens_per_chunk", tokens_per_chunk),
            ("window_tokens", window_tokens),
            ("windows_in_flight", windows_in_flight),
        )
        for name, value in least_one:
            if value is not None and value < 1:
                raise ConfigurationError(f"{name}: found {value}, allowed: 1 or more")
        if min_leaving is not None and not 0 <= min_leaving < 1:
            raise ConfigurationError(f"min_leaving: found {min_leaving}, allowed: 0 up to, not including, 1")
        self.tokens_per_chunk = tokens_per_chunk
        self.window_tokens = window_tokens
        if call_tokens is not None and call_tokens < 0:
            raise ConfigurationError(f"call_tokens: found {call_tokens}, allowed: 0 or more")
        self.min_leaving = min_leaving
        self.call_tokens = call_tokens
        self.windows_in_flight = windows_in_flight
        self.use_kernels = use_kernels
        self._agreed: set[tuple[int, ...]] = set()
        self._agreed_by_kernels: set[tuple[int, ...]] = set()
        self._tried: Any = None

    @torch.inference_mode()
    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[RaggedBatch]
    ) -> Iterator[ExecutedBatch]:
        self.prepare(network, policy)
        device = device_of(network)
        kind = "cuda" if device.type == "cuda" else "cpu"
        tokens_per_chunk = self.tokens_per_chunk or TOKENS_PER_CHUNK[kind]
        call_tokens = CALL_TOKENS[kind] if self.call_tokens is None else self.call_tokens
        window_tokens = self.window_tokens or tokens_per_chunk * CHUNKS_PER_WINDOW[kind]
        min_leaving = MIN_LEAVING[kind] if self.min_leaving is None else self.min_leaving
        is_gpu = kind == "cuda"
        first_tokens = tokens_per_chunk if is_gpu else None
        heads = BatchHeads(network, policy, self._agreed)
        kernels = self._window_kernels(network, policy, device)
        stretches = windows(batches, window_tokens, first_tokens, GROWTH, pinned=is_gpu)
        read = sorted_windows(stretches, device)
        if is_gpu:
            # The first is waited for anyway, and a thread of its own takes longer to read it.
            read = chain(list(islice(read, 1)), ahead(read))
        pools = (
            (window, order, pool(network, policy, ordered, tokens_per_chunk, call_tokens, min_leaving, heads, kernels))
            for window, order, ordered in read
        )
        for window, order, decisions in take_turns(pools, self.windows_in_flight or IN_FLIGHT[kind]):
            yield ExecutedBatch(window.index, in_order(decisions, order))

    def _window_kernels(
        self, network: SteppedNetwork, policy: ExitPolicy, device: torch.device
    ) -> WindowKernels | None:
        """The kernels for windows on a GPU, if a few made-up samples get the same answers with them as without."""
        if not self.use_kernels or device.type != "cuda":
            return None
        kernels = window_kernels(network, policy, device, self._agreed_by_kernels)
        if kernels is None:
            return None
        try:
            tried = (id(network), network.num_labels, type(policy))
            if self._tried is None or self._tried[0] != tried:
                compare_kernels(network, policy, device, kernels)
                self._tried = (tried, kernels.packs)
            kernels.packs = self._tried[1]
        except Exception as error:  # Triton and its compiler fail in many ways
            first_line = (str(error).strip().splitlines() or [""])[0]
            logger.warning("kernels for windows are not used: %s: %s", type(error).__name__, first_line)
            self.use_kernels = False
            return None
        return kernels


Flight = tuple[RaggedBatch, Tensor, Generator[None, None, ExitDecisions]]


def take_turns(pools: Iterable[Flight], in_flight: int) -> Iterator[tuple[RaggedBatch, Tensor, ExitDecisions]]:
    """Advances so many pools in turns, a step each; where one is done, the next one starts."""
    waiting = iter(pools)
    flights: list[Flight] = []
    while True:
        while len(flights) < in_flight and (started := next(waiting, None)) is not None:
            flights.append(started)
            next(started[2])  # before the next window is waited for, so that the device has something to do
        if not flights:
            return
        window, order, steps = flights.pop(0)
        try:
            next(steps)
            flights.append((window, order, steps))
        except StopIteration as stop:
            yield window, order, stop.value


def in_order(decisions: ExitDecisions, order: Tensor) -> ExitDecisions:
    """The decisions about samples that stood in `order`, in the order of the window."""
    back = order.argsort()
    scores = decisions.scores
    return ExitDecisions(
        decisions.exits[back],
        decisions.predictions[back],
        decisions.log_probabilities[back],
        None if scores is None else scores[back],
    )
