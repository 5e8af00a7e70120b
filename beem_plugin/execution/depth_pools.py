"""Throughput: all samples of a window at the same depth, in full batches, until the window is done."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.chunks import first_chunks, form_anew
from beem_plugin.execution.engine import Engine, ExecutedBatch, SteppedNetwork, device_of
from beem_plugin.execution.ledger import Flags, Ledger
from beem_plugin.execution.samples import Samples, pad_token_of, windows
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.replay import ExitDecisions
from beem_plugin.exits.signals import ExitSignals

TOKENS_PER_CHUNK = {"cuda": 65536, "cpu": 512}
CHUNKS_PER_WINDOW = {"cuda": 8, "cpu": 64}
CALL_TOKENS = {"cuda": 8192, "cpu": 32}


@Engine.register("depth_pools")
class DepthPools(Engine):
    """
    Breadth first. The input is read in windows; the samples of a window are sorted by length and brought from exit to
    exit together, in chunks of `tokens_per_chunk`, whatever the size of the batches they came in. Those that leave are
    taken out and full chunks are formed of the others, so that a layer call is a full batch as long as there is enough
    left in the window. Survivors lie next to each other: they are copied only when at least `min_leaving` of the tokens
    still computed belong to samples that have left.

    A window's policy steps are taken together, and on a GPU the host reads who has left while the other half of the
    window is computed. Memory is bounded by the window. A window's samples come out in the order of the input when it
    is done.

    Registered as an `Engine` with name "depth_pools".

    # Parameters

    tokens_per_chunk : `int`, optional (default = 65,536 on a GPU, 512 on a CPU)
        Tokens of a layer call.
    window_tokens : `int`, optional (default = 8 chunks on a GPU, 64 on a CPU)
        Tokens of a window.
    min_leaving : `float`, optional (default = `0.02`)
    call_tokens : `int`, optional (default = 8,192 on a GPU, 32 on a CPU)
        How many tokens more could be computed in the time that one more layer call costs: what padding is weighed
        against when chunks are cut.
    """

    def __init__(
        self,
        tokens_per_chunk: int | None = None,
        window_tokens: int | None = None,
        min_leaving: float = 0.02,
        call_tokens: int | None = None,
    ) -> None:
        for name, value in (("tokens_per_chunk", tokens_per_chunk), ("window_tokens", window_tokens)):
            if value is not None and value < 1:
                raise ConfigurationError(f"{name}: found {value}, allowed: 1 or more")
        if not 0 <= min_leaving < 1:
            raise ConfigurationError(f"min_leaving: found {min_leaving}, allowed: 0 up to, not including, 1")
        self.tokens_per_chunk = tokens_per_chunk
        self.window_tokens = window_tokens
        if call_tokens is not None and call_tokens < 0:
            raise ConfigurationError(f"call_tokens: found {call_tokens}, allowed: 0 or more")
        self.min_leaving = min_leaving
        self.call_tokens = call_tokens

    @torch.inference_mode()
    def run(
        self, network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[dict[str, Tensor]]
    ) -> Iterator[ExecutedBatch]:
        self.prepare(network, policy)
        device = device_of(network)
        kind = "cuda" if device.type == "cuda" else "cpu"
        tokens_per_chunk = self.tokens_per_chunk or TOKENS_PER_CHUNK[kind]
        call_tokens = CALL_TOKENS[kind] if self.call_tokens is None else self.call_tokens
        window_tokens = self.window_tokens or tokens_per_chunk * CHUNKS_PER_WINDOW[kind]
        for window in windows(batches, window_tokens, pad_token_of(network)):
            order = window.lengths.argsort(stable=True)
            ordered = window.select(order).to(device)
            # Every other sample, so that both halves are alike. Small windows and CPUs have nothing to wait for.
            share = 2 if kind == "cuda" and int(window.lengths.sum()) >= 2 * tokens_per_chunk else 1
            parts = [torch.arange(first, len(window), share) for first in range(share)]
            pools = [
                pool(network, policy, ordered.select(part), tokens_per_chunk, call_tokens, self.min_leaving)
                for part in parts
            ]
            yield ExecutedBatch(window.index, scatter(take_turns(pools), [order[part] for part in parts]))


def pool(
    network: SteppedNetwork,
    policy: ExitPolicy,
    samples: Samples,
    tokens_per_chunk: int,
    call_tokens: int,
    min_leaving: float,
) -> Generator[None, None, ExitDecisions]:
    """
    Brings `samples`, sorted by length, through the network. Yields after the work of each exit has been queued, before
    its outcome is waited for; returns the decisions in the order of `samples`.
    """
    chunks = first_chunks(network, samples, tokens_per_chunk, call_tokens)
    device = chunks[0].state.hidden_states.device
    ledger = Ledger(policy, len(samples), network.num_exits, network.num_labels, device)
    flags = Flags(device)
    for exit_number in range(1, network.num_exits + 1):
        said = []
        for chunk in chunks:
            chunk.state = network.advance(exit_number, chunk.state)
            said.append(network.exit_signals(exit_number, chunk.state))
        ledger.step(exit_number, together(said))
        if exit_number == network.num_exits:
            break
        flags.ask(ledger.left)
        yield
        left = flags.read()
        lengths = torch.cat([chunk.lengths for chunk in chunks])
        wasted = int(lengths[left].sum())
        if int(left.sum()) == len(left):
            break
        if wasted == 0 or wasted < min_leaving * int(lengths.sum()):
            continue
        kept, gone = (~left).nonzero().squeeze(1), left.nonzero().squeeze(1)
        chunks = form_anew(network.backbone, chunks, kept, tokens_per_chunk, call_tokens)
        ledger.take_out(gone.to(device, non_blocking=True), kept.to(device, non_blocking=True))
    ledger.settle()
    yield
    return ledger.answers.decisions()


def together(said: list[ExitSignals]) -> ExitSignals:
    """The signals of several chunks as those of one batch."""
    if len(said) == 1:
        return said[0]
    extra = {name: torch.cat([signals.extra[name] for signals in said]) for name in said[0].extra}
    return ExitSignals(torch.cat([signals.logits for signals in said]), extra)


def take_turns(pools: list[Generator[None, None, ExitDecisions]]) -> list[ExitDecisions]:
    """Advances the pools in turns until all are done."""
    results: dict[int, ExitDecisions] = {}
    while len(results) < len(pools):
        for number, steps in enumerate(pools):
            if number in results:
                continue
            try:
                next(steps)
            except StopIteration as stop:
                results[number] = stop.value
    return [results[number] for number in range(len(pools))]


def scatter(parts: list[ExitDecisions], places: list[Tensor]) -> ExitDecisions:
    """The decisions of several pools, each at its places in the window."""
    order = torch.cat(places).argsort()
    scores = [part.scores for part in parts if part.scores is not None]
    return ExitDecisions(
        torch.cat([part.exits for part in parts])[order],
        torch.cat([part.predictions for part in parts])[order],
        torch.cat([part.log_probabilities for part in parts])[order],
        torch.cat(scores)[order] if len(scores) == len(parts) else None,
    )
