"""One window of depth pools: its samples brought from exit to exit together."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.transfer import all_to_device
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.answers import Answers
from beem_plugin.execution.chunks import Chunk, first_chunks, form_anew
from beem_plugin.execution.engine import SteppedNetwork
from beem_plugin.execution.fused_window import (
    FusedWindow,
    KernelsDisagree,
    WindowKernels,
    holds_no_more,
    packed_chunks,
)
from beem_plugin.execution.ledger import Flags, Ledger
from beem_plugin.execution.pooled_heads import TOLERANCE, BatchHeads
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals

logger = logging.getLogger(__name__)


def pool(
    network: SteppedNetwork,
    policy: ExitPolicy,
    samples: RaggedBatch,
    tokens_per_chunk: int,
    call_tokens: int,
    min_leaving: float,
    heads: BatchHeads,
    kernels: WindowKernels | None = None,
) -> Generator[None, None, ExitDecisions]:
    """
    Brings `samples`, sorted by length, through the network. Yields after the work of each exit has been queued, before
    its outcome is waited for; returns the decisions in the order of `samples`.
    """
    # Made one by one, as they are needed, so that a device computes the first while the host makes the next.
    longest = int(samples.lengths[-1])
    if kernels is not None and kernels.packs and network.backbone.can_pack(longest):
        made = packed_chunks(network.backbone, samples, tokens_per_chunk)
    else:
        made = first_chunks(network, samples, tokens_per_chunk, call_tokens)
    first = next(made)
    device = first.state.hidden_states.device
    window: Window | FusedWindow
    if kernels is not None and holds_no_more(network.backbone, first):
        window = FusedWindow(kernels, len(samples))
    else:
        window = Window(heads, Ledger(policy, len(samples), network.num_exits, network.num_labels, device))
    flags = Flags(device)
    made = chain([first], made)
    for exit_number in range(1, network.num_exits + 1):
        is_last = exit_number == network.num_exits
        can_leave = not is_last and policy.can_leave(exit_number)
        chunks = [advanced(network, exit_number, chunk) for chunk in made]
        made = iter(chunks)
        if is_last or can_leave or policy.needs(exit_number):
            gone = window.step(exit_number, chunks)
        if is_last:
            break
        if not can_leave:
            continue
        flags.ask(gone)
        yield
        left = flags.read().bool()
        lengths = torch.cat([chunk.lengths for chunk in chunks])
        wasted = int(lengths[left].sum())
        if int(left.sum()) == len(left):
            break
        if wasted == 0 or wasted < min_leaving * int(lengths.sum()):
            continue
        kept = (~left).nonzero().squeeze(1)
        made = window.form_anew(network.backbone, chunks, kept, tokens_per_chunk, call_tokens)
    answers = window.settle()
    answers.fetch()
    yield
    return answers.decisions()


def advanced(network: SteppedNetwork, exit_number: int, chunk: Chunk) -> Chunk:
    """The chunk, brought to the exit."""
    chunk.state = network.advance(exit_number, chunk.state)
    return chunk


class Window:
    """
    The samples of a window, whatever the network and the policy.

    # Parameters

    heads : `BatchHeads`
    ledger : `Ledger`
    """

    def __init__(self, heads: BatchHeads, ledger: Ledger) -> None:
        self.heads, self.ledger = heads, ledger

    def step(self, exit_number: int, chunks: Sequence[Chunk]) -> Tensor:
        """Lets the exit speak and the policy decide; who of those still computed has left, `(samples,)` bool."""
        self.ledger.step(exit_number, together([self.heads(exit_number, chunk.state) for chunk in chunks]))
        return self.ledger.left

    def form_anew(
        self, backbone: Any, chunks: Sequence[Chunk], kept: Tensor, tokens_per_chunk: int, call_tokens: int
    ) -> Iterator[Chunk]:
        """Full chunks of those at `kept`; the others are taken out for good."""
        stay = torch.zeros(len(self.ledger), dtype=torch.bool)
        stay[kept] = True
        gone = (~stay).nonzero().squeeze(1)
        lengths = torch.cat([chunk.lengths for chunk in chunks])[kept]
        kept_here, gone_here, lengths_here = all_to_device((kept, gone, lengths), self.ledger.rows.device)
        self.ledger.take_out(gone_here, kept_here)
        return form_anew(backbone, chunks, kept, tokens_per_chunk, call_tokens, kept_here, lengths_here)

    def settle(self) -> Answers:
        """Everybody has left."""
        self.ledger.settle()
        return self.ledger.answers


def together(said: list[ExitSignals]) -> ExitSignals:
    """The signals of several chunks as those of one batch."""
    if len(said) == 1:
        return said[0]
    extra = {name: torch.cat([signals.extra[name] for signals in said]) for name in said[0].extra}
    return ExitSignals(torch.cat([signals.logits for signals in said]), extra)


def compare_kernels(network: SteppedNetwork, policy: ExitPolicy, device: torch.device, kernels: WindowKernels) -> None:
    """
    Raises `KernelsDisagree` if windows kept by kernels say something else than windows kept without. Finds out whether
    samples can be packed.
    """
    made_up = make_up_samples(getattr(network.backbone, "max_tokens", None)).to(device)
    chunks = list(first_chunks(network, made_up, 64))
    can_pack = getattr(network.backbone, "can_pack", None)
    packed: list[Chunk] = []
    for exit_number in range(1, network.num_exits + 1):  # all heads, wherever the made-up samples leave
        chunks = [advanced(network, exit_number, chunk) for chunk in chunks]
        kernels.logits(exit_number, chunks)
        if exit_number == 1 and can_pack is not None and holds_no_more(network.backbone, chunks[0]):
            # Blocks have found out by now whether their kernels serve.
            fits = can_pack(int(made_up.lengths[-1]))
            packed = list(packed_chunks(network.backbone, made_up, 64)) if fits else []
        packed = [advanced(network, exit_number, chunk) for chunk in packed]
        if packed and not same_tokens(chunks, packed):
            logger.warning("samples are not packed: at exit %d they say something else than padded", exit_number)
            packed = []
    kernels.packs = bool(packed)
    heads = BatchHeads(network, policy, set())
    found, expected = (run_to_end(pool(network, policy, made_up, 64, 0, 0.0, heads, one)) for one in (kernels, None))
    same = found.exits == expected.exits
    # A score next to its threshold may fall on either side; all of them will not.
    apart = (found.log_probabilities - expected.log_probabilities)[same].abs()
    if not bool(same.float().mean() >= 0.5) or float(apart.max()) > 0.2:
        raise KernelsDisagree("made-up samples get other answers")


def make_up_samples(max_tokens: int | None) -> RaggedBatch:
    """A few, of all the lengths that kernels tell apart."""
    lengths = torch.tensor([1, 2, 3, 4, 6, 8, 17, 35, 70])
    lengths = lengths if max_tokens is None else lengths.clamp(max=max_tokens)
    tokens = 3 + torch.arange(int(lengths.sum())) * 7 % 31
    return RaggedBatch({"input_ids": tokens}, lengths.cumsum(0) - lengths, lengths, torch.arange(len(lengths)))


def same_tokens(chunks: Sequence[Chunk], packed: Sequence[Chunk]) -> bool:
    """Whether packed samples have the hidden states that padded ones have, as near as their precision goes."""
    said = torch.cat([chunk.state.hidden_states[0] for chunk in packed]).float()
    expected = torch.cat([chunk.state.hidden_states[chunk.state.attention_mask] for chunk in chunks]).float()
    tolerance = TOLERANCE.get(chunks[0].state.hidden_states.dtype, 1e-3) * (1 + float(expected.abs().max()))
    return float((said - expected).abs().max()) <= tolerance


def run_to_end(steps: Generator[None, None, ExitDecisions]) -> ExitDecisions:
    """What a pool returns."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            decisions: ExitDecisions = stop.value
            return decisions
