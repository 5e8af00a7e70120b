"""
What a window of depth pools needs beside its layers, each in one GPU kernel: the mean of each sample's tokens, a step
of the policy for everybody, and the survivors put together. As torch operations they are hundreds of launches a window,
and with short sentences the host that launches them is what is waited for.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from torch import Tensor

from beem_plugin.backbones.packed import Packed
from beem_plugin.common.kernel_launch import launch, power_of_two
from beem_plugin.execution.fused_rule import FusedRule

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

SAMPLES = 64
"""That one program decides about."""
TOKENS = 4
"""That one program copies."""
MEAN_TOKENS = 8
"""That one program reads at a time."""

if triton is not None:
    from beem_plugin.execution.fused_kernels import ENTROPY, MARGIN, NO_SCORE, compared, scored

    # Numbers that differ from window to window, of which no kernel should be made each.
    @triton.jit(do_not_specialize=["tokens"])
    def mean_tokens(
        hidden,
        real,
        starts,
        lengths,
        vectors,
        tokens,
        size,
        BLOCK: tl.constexpr,
        LENGTH: tl.constexpr,
        TOKENS: tl.constexpr,
        PADDED: tl.constexpr,
        PACKED: tl.constexpr,
    ):
        """
        The mean over a sample's tokens that are no padding; LENGTH is at least `tokens`. In one warp, where each thread
        has columns of its own and nothing to exchange.
        """
        sample = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        if PACKED:
            begin = tl.load(starts + sample)
            tokens = tl.load(lengths + sample)
        else:
            begin = sample * tokens
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        count = 0.0
        for start in range(0, LENGTH, TOKENS):
            place = start + tl.arange(0, TOKENS)
            counts = place < tokens
            if PADDED:
                counts = counts & (tl.load(real + begin + place, mask=counts, other=0) != 0)
            where = counts[:, None] & (column < size)[None, :]
            row = (begin + place[:, None]) * size + column[None, :]
            total += tl.sum(tl.load(hidden + row, mask=where, other=0.0).to(tl.float32), axis=0)
            count += tl.sum(counts.to(tl.float32), axis=0)
        mean = total / tl.maximum(count, 1.0)
        tl.store(vectors + sample * size + column, mean.to(vectors.dtype.element_ty), mask=column < size)

    @triton.jit(do_not_specialize=["count"])
    def gather_samples(
        table, hidden, real, count, size, BLOCK: tl.constexpr, TOKENS: tl.constexpr, HAS_REAL: tl.constexpr
    ):
        """
        Copies some tokens of a sample to their new place, and fills up with zeros. `table`, four rows of `count`: the
        address of the sample's first token, the token in `hidden` and `real` that becomes its first, and how many it
        has and gets.
        """
        sample = tl.program_id(0)
        source = tl.load(table + sample).to(hidden.dtype)
        target = tl.load(table + count + sample)
        length = tl.load(table + 2 * count + sample)
        width = tl.load(table + 3 * count + sample)
        column = tl.arange(0, BLOCK)
        inside = (column < size)[None, :]
        place = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
        there = place < width
        has = place < length
        row = place[:, None].to(tl.int64) * size + column[None, :]
        value = tl.load(source + row, mask=has[:, None] & inside, other=0.0)
        tl.store(hidden + target * size + row, value, mask=there[:, None] & inside)
        if HAS_REAL:
            tl.store(real + target + place, has.to(tl.int8), mask=there)

    @triton.jit(do_not_specialize=["count", "exit_number"])
    def decide_all(
        logits,
        rows,
        numbers,
        label,
        score,
        left,
        exits,
        output,
        flags,
        count,
        labels,
        exit_number,
        RULE: tl.constexpr,
        SURER: tl.constexpr,
        STRICT: tl.constexpr,
        RESTART: tl.constexpr,
        LAST: tl.constexpr,
        LABELS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        """
        One step of a policy for many samples, as `fused_kernels.decide` takes it for one. `rows`: each sample's place
        in `label`, `score`, `left`, `exits` and `output`, which those who have left no longer change.
        """
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = place < count
        row = tl.load(rows + place, mask=inside, other=0)
        column = tl.arange(0, LABELS)
        real = (column < labels)[None, :]
        known = inside[:, None] & real
        logit = tl.load(logits + place[:, None] * labels + column[None, :], mask=known, other=0.0).to(tl.float64)
        highest = tl.max(tl.where(real, logit, -1e300), axis=1)
        below = tl.where(real, logit - highest[:, None], 0.0)
        log_sum = tl.log(tl.sum(tl.where(real, tl.exp(below), 0.0), axis=1))
        log_probability = below - log_sum[:, None]
        probability = tl.where(real, tl.exp(log_probability), 0.0)
        confidence = tl.max(probability, axis=1)
        said = tl.min(tl.where(real & (logit == highest[:, None]), column[None, :], LABELS), axis=1)
        prediction = said.to(tl.float64)
        factor = tl.load(numbers)
        threshold = tl.load(numbers + 1)
        everybody = tl.load(numbers + 2)
        is_first = tl.load(numbers + 3)
        agrees = prediction == tl.load(label + row, mask=inside, other=-1.0)
        last_score = tl.load(score + row, mask=inside, other=0.0)
        now = scored(confidence, agrees, last_score, factor, is_first, RULE, RESTART)
        if RULE == ENTROPY:
            now = -tl.sum(tl.where(probability > 0, probability * log_probability, 0.0), axis=1) / factor
        if RULE == MARGIN:
            others = tl.where(real & (column[None, :] != said[:, None]), probability, -1.0)
            now = confidence - tl.max(others, axis=1)
        passes = compared(now, threshold, SURER, STRICT)
        leaves = tl.where(everybody != 0, 1.0, passes.to(tl.float64))
        if RULE == NO_SCORE:
            leaves = tl.zeros((BLOCK,), dtype=tl.float64) + everybody
        if LAST:
            leaves = tl.zeros((BLOCK,), dtype=tl.float64) + 1.0
        before = tl.load(left + row, mask=inside, other=1).to(tl.float64)
        here = inside & (before == 0)
        new = here & (leaves != 0)
        tl.store(label + row, prediction, mask=here)
        tl.store(score + row, now, mask=here)
        tl.store(exits + row, row * 0 + exit_number, mask=new)
        tl.store(output + row[:, None] * labels + column[None, :], log_probability, mask=new[:, None] & real)
        gone = (before + leaves != 0).to(tl.int8)
        tl.store(left + row, gone, mask=inside)
        tl.store(flags + place, gone, mask=inside)


def mean_into(vectors: Tensor, hidden_states: Tensor, real: Tensor | None, packed: Packed | None = None) -> None:
    """
    # Parameters

    vectors : `Tensor`
        `(samples, hidden)`, contiguous: gets each sample's mean.
    hidden_states : `Tensor`
        `(samples, tokens, hidden)`, contiguous.
    real : `Tensor`, optional
        `(samples, tokens)` bool, contiguous: the tokens that count; `None` says all.
    packed : `Packed`, optional
        Where the samples are, if they lie packed in a batch of one.
    """
    samples, size = vectors.shape
    tokens = hidden_states.shape[1] if packed is None else packed.longest
    block = min(256, power_of_two(size))
    launch(
        mean_tokens,
        (samples, -(-size // block)),
        hidden_states,
        hidden_states if real is None else real,
        hidden_states if packed is None else packed.starts,
        hidden_states if packed is None else packed.lengths,
        vectors,
        tokens,
        size,
        BLOCK=block,
        LENGTH=power_of_two(tokens),
        TOKENS=min(MEAN_TOKENS, power_of_two(tokens)),
        PADDED=real is not None,
        PACKED=packed is not None,
        num_warps=1,
    )


def gather_into(hidden: Tensor, real: Tensor | None, table: Tensor, most: int) -> None:
    """
    # Parameters

    hidden : `Tensor`
        `(tokens, hidden)`: gets the samples, one after the other.
    real : `Tensor`, optional
        `(tokens,)` uint8: gets 1 at every token, 0 at padding.
    table : `Tensor`
        `(4, samples)` int64: see `gather_samples`.
    most : `int`
        The most tokens that a sample gets.
    """
    size = hidden.shape[1]
    launch(
        gather_samples,
        (table.shape[1], -(-most // TOKENS)),
        table,
        hidden,
        hidden if real is None else real,
        table.shape[1],
        size,
        BLOCK=power_of_two(size),
        TOKENS=TOKENS,
        HAS_REAL=real is not None,
    )


def decide(
    rule: FusedRule,
    numbers: Tensor,
    exit_number: int,
    logits: Tensor,
    rows: Tensor,
    state: dict[str, Tensor],
    flags: Tensor,
    is_last: bool,
) -> None:
    """
    # Parameters

    rule : `FusedRule`
    numbers : `Tensor`
        `(4,)` float64 on the device: the rule's at this exit.
    exit_number : `int`
    logits : `Tensor`
        `(samples, labels)`, contiguous.
    rows : `Tensor`
        `(samples,)` int64: their places in the tensors of `state`.
    state : `dict[str, Tensor]`
        `label`, `score` float64, `left` uint8, `exits` int64, each `(window,)`, `output` `(window, labels)` float64.
    flags : `Tensor`
        `(samples,)` uint8: gets 1 for those who have left.
    is_last : `bool`
        Whether everybody leaves.
    """
    count, labels = logits.shape
    launch(
        decide_all,
        (-(-count // SAMPLES),),
        logits,
        rows,
        numbers,
        state["label"],
        state["score"],
        state["left"],
        state["exits"],
        state["output"],
        flags,
        count,
        labels,
        exit_number,
        RULE=rule.kind,
        SURER=rule.surer,
        STRICT=rule.strict,
        RESTART=rule.restart,
        LAST=is_last,
        LABELS=max(2, power_of_two(labels)),
        BLOCK=SAMPLES,
        num_warps=2,
    )
