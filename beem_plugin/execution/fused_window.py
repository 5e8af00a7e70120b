"""A window of depth pools whose bookkeeping is a few kernels an exit: see `pool_kernels`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.backbones.packed import PACKED, Packed
from beem_plugin.common.transfer import to_device
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution import pool_kernels
from beem_plugin.execution.answers import Answers
from beem_plugin.execution.chunks import Chunk, plan
from beem_plugin.execution.engine import SteppedNetwork
from beem_plugin.execution.fused_rule import FusedRule, fused_rule
from beem_plugin.execution.pooled_heads import HeadWeights, agree, head_weights
from beem_plugin.exits.policy import ExitPolicy

MOST_LABELS = 64
MOST_HIDDEN = 4096


class WindowKernels:
    """
    What a network and a policy need so that their windows can be kept by kernels.

    # Parameters

    network : `SteppedNetwork`
    heads : `list[HeadWeights]`
        Of every exit.
    rule : `FusedRule`
    device : `torch.device`
    agreed : `set[tuple[int, ...]]`
        Places of head weights that were found to say what the network says.
    """

    def __init__(
        self,
        network: SteppedNetwork,
        heads: list[HeadWeights],
        rule: FusedRule,
        device: torch.device,
        agreed: set[tuple[int, ...]],
    ) -> None:
        self.network, self.heads, self.rule, self.device, self.agreed = network, heads, rule, device, agreed
        self.numbers = torch.tensor(rule.numbers, dtype=torch.float64, device=device)
        self.packs = False
        """Whether packed samples were found to be given what padded ones are."""

    def logits(self, exit_number: int, chunks: Sequence[Chunk]) -> Tensor:
        """`(samples of all chunks, labels)` float32: what the exit says about everybody."""
        head = self.heads[exit_number - 1]
        first = chunks[0].state.hidden_states
        vectors = first.new_empty((sum(len(chunk) for chunk in chunks), first.shape[2]))
        start = 0
        for chunk in chunks:
            state, stop = chunk.state, start + len(chunk)
            packed = state.shared.get(PACKED)
            if head.is_mean and packed is not None:
                pool_kernels.mean_into(vectors[start:stop], state.hidden_states, None, packed)
            elif packed is not None:
                torch.index_select(state.hidden_states[0], 0, packed.starts, out=vectors[start:stop])
            elif head.is_mean:
                real = state.attention_mask.contiguous()
                pool_kernels.mean_into(vectors[start:stop], state.hidden_states.contiguous(), real)
            else:
                vectors[start:stop] = state.hidden_states[:, 0]
            start = stop
        pooled = torch.addmm(head.dense_bias, vectors, head.dense.t()).tanh_()
        logits = torch.addmm(head.classifier_bias, pooled, head.classifier.t()).float()
        if head.place not in self.agreed:
            if not agree(self.network, exit_number, as_padded(self.network, chunks[0]), logits[: len(chunks[0])]):
                raise KernelsDisagree(f"at exit {exit_number} they say something else than the network")
            self.agreed.add(head.place)
        return logits


class KernelsDisagree(Exception):
    """What was computed by kernels is not what the modules say."""


def window_kernels(
    network: SteppedNetwork, policy: ExitPolicy, device: torch.device, agreed: set[tuple[int, ...]]
) -> WindowKernels | None:
    """`None` where there is no Triton, or the heads or the policy are not of the known kind."""
    rule = None if pool_kernels.triton is None or network.num_labels < 2 else fused_rule(policy)
    if rule is None or network.num_labels > MOST_LABELS:
        return None
    heads = [head_weights(network, number, policy) for number in range(1, network.num_exits + 1)]
    known = [head for head in heads if head is not None]
    if len(known) < len(heads) or known[0].dense.shape[1] > MOST_HIDDEN:
        return None
    return WindowKernels(network, known, rule, device, agreed)


class FusedWindow:
    """
    Who of a window is still computed, where everybody stands, and what those who have left were given.

    # Parameters

    kernels : `WindowKernels`
    samples : `int`
    """

    def __init__(self, kernels: WindowKernels, samples: int) -> None:
        self.kernels = kernels
        device, labels = kernels.device, kernels.network.num_labels
        self.answers = Answers(samples, labels, device)
        self.state = {
            "label": torch.full((samples,), -1.0, dtype=torch.float64, device=device),
            "score": torch.zeros(samples, dtype=torch.float64, device=device),
            "left": torch.zeros(samples, dtype=torch.uint8, device=device),
            "exits": self.answers.exits,
            "output": self.answers.output,
        }
        if kernels.rule.has_score:
            self.answers.scores = self.state["score"]
        self.rows = torch.arange(samples, device=device)
        self.rows_here = np.arange(samples)
        self.flags = torch.empty(samples, dtype=torch.uint8, device=device)

    def step(self, exit_number: int, chunks: Sequence[Chunk]) -> Tensor:
        """Lets the exit speak and the policy decide; who of those still computed has left, `(samples,)` uint8."""
        kernels = self.kernels
        is_last = exit_number == kernels.network.num_exits
        logits = kernels.logits(exit_number, chunks)
        flags = self.flags[: len(self.rows)]
        numbers = kernels.numbers[exit_number - 1]
        pool_kernels.decide(kernels.rule, numbers, exit_number, logits, self.rows, self.state, flags, is_last)
        return flags

    def form_anew(
        self, backbone: Any, chunks: Sequence[Chunk], kept: Tensor, tokens_per_chunk: int, call_tokens: int
    ) -> Iterator[Chunk]:
        """
        Full chunks of the samples that stay, in one copy to the device and one kernel there. As `chunks.form_anew`,
        for states that hold nothing but what the backbone makes anew.
        """
        if PACKED in chunks[0].state.shared:
            yield from self._form_packed(backbone, chunks, kept.numpy(), tokens_per_chunk)
            return
        chosen = kept.numpy()
        lengths = torch.cat([chunk.lengths for chunk in chunks])[kept]
        first = chunks[0].state.hidden_states
        size, item = first.shape[2], first.element_size()
        old = [chunk.state.hidden_states.contiguous() for chunk in chunks]
        addresses = [one.data_ptr() + np.arange(len(one)) * (one.shape[1] * size * item) for one in old]
        stretches = plan(lengths, tokens_per_chunk, call_tokens)
        counts = np.array([last - start for start, last in stretches])
        widths = lengths[[last - 1 for _, last in stretches]].numpy()
        width_of_each = np.repeat(widths, counts)
        ends = np.cumsum(width_of_each)
        table = np.empty((5, len(chosen)), dtype=np.int64)
        table[0] = np.concatenate(addresses)[chosen]
        table[1] = ends - width_of_each
        table[2] = lengths.numpy()
        table[3] = width_of_each
        table[4] = self.rows_here = self.rows_here[chosen]
        there = to_device(torch.from_numpy(table), first.device)
        tokens = int(ends[-1])
        hidden = first.new_empty((tokens, size))
        real = torch.empty(tokens, dtype=torch.uint8, device=first.device)
        pool_kernels.gather_into(hidden, real, there[:4], int(widths.max()))
        self.rows = there[4]
        token = 0
        for (start, last), width in zip(stretches, widths.tolist(), strict=True):
            shape = (last - start, width)
            stop = token + shape[0] * width
            mask = real[token:stop].view(torch.bool).view(shape) if int(lengths[start]) < width else None
            state = backbone.make_state(hidden[token:stop].view(*shape, size), mask)
            yield Chunk(state, lengths[start:last])
            token = stop

    def _form_packed(
        self, backbone: Any, chunks: Sequence[Chunk], chosen: np.ndarray, tokens_per_chunk: int
    ) -> Iterator[Chunk]:
        first = chunks[0].state.hidden_states
        row = first.shape[2] * first.element_size()
        old = [chunk.lengths.numpy() for chunk in chunks]
        addresses = [
            chunk.state.hidden_states.data_ptr() + (lengths.cumsum() - lengths) * row
            for chunk, lengths in zip(chunks, old, strict=True)
        ]
        lengths = np.concatenate(old)[chosen]
        self.rows_here = self.rows_here[chosen]
        parts, starts = cut_evenly(lengths, tokens_per_chunk)
        ends = lengths.cumsum()
        table = np.stack([np.concatenate(addresses)[chosen], ends - lengths, lengths, lengths, self.rows_here, starts])
        there = to_device(torch.from_numpy(table), first.device)
        self.rows = there[4]
        hidden = first.new_empty((int(ends[-1]), first.shape[2]))
        pool_kernels.gather_into(hidden, None, there[:4], int(lengths[-1]))
        token = 0
        for start, last in parts:
            packed = Packed(there[5, start:last], there[2, start:last], lengths[start:last])
            stop = int(ends[last - 1])
            state = backbone.packed_state(hidden[token:stop][None], packed)
            yield Chunk(state, torch.from_numpy(lengths[start:last]))
            token = stop

    def settle(self) -> Answers:
        """Everybody has left."""
        return self.answers


def holds_no_more(backbone: Any, chunk: Chunk) -> bool:
    """Whether the chunk's state holds nothing of its samples but what the backbone makes anew of their lengths."""
    return set(chunk.state.batched) <= set(getattr(backbone, "token_dims", {}))


def packed_chunks(backbone: Any, samples: RaggedBatch, tokens_per_chunk: int) -> Iterator[Chunk]:
    """As `first_chunks`, packed."""
    lengths = samples.lengths.numpy()
    parts, starts = cut_evenly(lengths, tokens_per_chunk)
    table = np.stack([samples.starts.numpy(), starts, lengths])
    there = to_device(torch.from_numpy(table), samples.tokens["input_ids"].device)
    for start, last in parts:
        packed = Packed(there[1, start:last], there[2, start:last], lengths[start:last])
        state = backbone.embed_packed(samples.tokens, there[0, start:last], packed)
        yield Chunk(state, samples.lengths[start:last])


def cut_evenly(lengths: np.ndarray, tokens_per_chunk: int) -> tuple[list[tuple[int, int]], np.ndarray]:
    """
    # Parameters

    lengths : `np.ndarray`
        `(samples,)` int64, one or more.
    tokens_per_chunk : `int`

    # Returns

    `tuple[list[tuple[int, int]], np.ndarray]`
        First sample of each chunk and the one after its last; each sample's first token in its chunk, `(samples,)`.
    """
    ends = lengths.cumsum()
    count = max(1, round(int(ends[-1]) / tokens_per_chunk))
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count)
    cuts = [0, *np.unique(edges[(edges > 0) & (edges < len(lengths))]).tolist(), len(lengths)]
    parts = list(zip(cuts, cuts[1:]))
    starts = ends - lengths
    for start, last in parts:
        starts[start:last] -= starts[start]
    return parts, starts


def as_padded(network: SteppedNetwork, chunk: Chunk) -> BackboneState:
    """The chunk's state as modules know it."""
    packed = chunk.state.shared.get(PACKED)
    if packed is None:
        return chunk.state
    state: BackboneState = network.backbone.make_state(*packed.padded(chunk.state.hidden_states))
    return state
