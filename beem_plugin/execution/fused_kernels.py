"""
An exit's head and decision for one sample in two GPU kernels, where the modules and the policy launch thirty. What they
compute is said by `exits/heads/pooled.py`, `exits/signals.py` and the policies; a test holds them against those.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

if triton is not None:
    NO_SCORE, BEEM, CONFIDENCE, PATIENCE, ENTROPY, MARGIN = (tl.constexpr(number) for number in range(6))

    @triton.jit
    def scored(confidence, agrees, last_score, factor, is_first, RULE: tl.constexpr, RESTART: tl.constexpr):
        """The score of the rules that confidence and memory suffice for, of one sample or of many."""
        score = confidence
        if RULE == BEEM:
            vote = factor * confidence
            changed = vote if RESTART else vote * 0.0
            score = tl.where(agrees, last_score + vote, changed)
            score = tl.where(is_first != 0, vote, score)
        if RULE == PATIENCE:
            score = tl.where(agrees, last_score + 1.0, last_score * 0.0)
        return score

    @triton.jit
    def compared(score, threshold, SURER: tl.constexpr, STRICT: tl.constexpr):
        """Whether the score passes."""
        if SURER:
            passes = score > threshold if STRICT else score >= threshold
        else:
            passes = score < threshold if STRICT else score <= threshold
        return passes

    @triton.jit
    def stage(staging, inputs, mask, size, length, BLOCK: tl.constexpr):
        """
        Rows of `length` from pinned memory to the device, the last one also as a mask. A copy would do, but a graph
        that begins with a copy waits for it longer than this takes.
        """
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(staging + place, mask=place < size, other=0)
        tl.store(inputs + place, value, mask=place < size)
        of_mask = place - (size - length)
        tl.store(mask + of_mask, (value != 0).to(tl.int8), mask=(of_mask >= 0) & (place < size))

    @triton.jit
    def mean_vector(
        hidden, mask, vector, stride, size, LENGTH: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr
    ):
        """The mean over the tokens that are not padding, rounded as the pooler's own."""
        column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        count = 0.0
        for start in range(0, LENGTH, TOKENS):
            row = start + tl.arange(0, TOKENS)
            real = (tl.load(mask + row, mask=row < LENGTH, other=0) != 0) & (row < LENGTH)
            where = real[:, None] & (column < size)[None, :]
            value = tl.load(hidden + row[:, None] * stride + column[None, :], mask=where, other=0.0)
            total += tl.sum(value.to(tl.float32), axis=0)
            count += tl.sum(real.to(tl.float32), axis=0)
        total = total.to(hidden.dtype.element_ty).to(tl.float32)
        mean = total / tl.maximum(count, 1e-13)
        tl.store(vector + column, mean.to(vector.dtype.element_ty), mask=column < size)

    @triton.jit
    def dense_tanh(vector, weight, bias, pooled, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
        """`tanh(weight @ vector + bias)`, some rows a program."""
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, BLOCK)
        inside = (row < size)[:, None] & (column < size)[None, :]
        entry = tl.load(weight + row[:, None] * size + column[None, :], mask=inside, other=0.0).to(tl.float32)
        value = tl.load(vector + column, mask=column < size, other=0.0).to(tl.float32)
        total = tl.sum(entry * value[None, :], axis=1)
        total += tl.load(bias + row, mask=row < size, other=0.0).to(tl.float32)
        total = total.to(pooled.dtype.element_ty).to(tl.float32)
        shrunk = tl.exp(-2.0 * tl.abs(total))
        result = (1.0 - shrunk) / (1.0 + shrunk)
        result = tl.where(total < 0, -result, result)
        tl.store(pooled + row, result.to(pooled.dtype.element_ty), mask=row < size)

    @triton.jit
    def decide(
        pooled,
        weight,
        bias,
        numbers,
        before,
        after,
        answer,
        size,
        labels,
        RULE: tl.constexpr,
        SURER: tl.constexpr,
        STRICT: tl.constexpr,
        RESTART: tl.constexpr,
        LABELS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        """
        The classifier, and one step of a policy in double precision. `numbers`: weight or divisor, threshold, whether
        everybody leaves, whether this is exit 1. `before`, `after`: label and score. `answer`: leaves, score,
        log-probabilities.
        """
        label = tl.arange(0, LABELS)
        column = tl.arange(0, BLOCK)
        real = label < labels
        inside = real[:, None] & (column < size)[None, :]
        entry = tl.load(weight + label[:, None] * size + column[None, :], mask=inside, other=0.0).to(tl.float32)
        value = tl.load(pooled + column, mask=column < size, other=0.0).to(tl.float32)
        logit = tl.sum(entry * value[None, :], axis=1)
        logit += tl.load(bias + label, mask=real, other=0.0).to(tl.float32)
        logit = logit.to(weight.dtype.element_ty).to(tl.float64)
        lowest = tl.full((LABELS,), -1e300, tl.float64)
        highest = tl.max(tl.where(real, logit, lowest), axis=0)
        below = tl.where(real, logit - highest, 0.0)
        log_sum = tl.log(tl.sum(tl.where(real, tl.exp(below), 0.0), axis=0))
        log_probability = below - log_sum
        probability = tl.where(real, tl.exp(log_probability), 0.0)
        confidence = tl.max(probability, axis=0)
        prediction = tl.min(tl.where(real & (logit == highest), label, LABELS), axis=0).to(tl.float64)
        factor = tl.load(numbers)
        threshold = tl.load(numbers + 1)
        everybody = tl.load(numbers + 2)
        is_first = tl.load(numbers + 3)
        agrees = prediction == tl.load(before)
        last_score = tl.load(before + 1)
        score = scored(confidence, agrees, last_score, factor, is_first, RULE, RESTART)
        if RULE == ENTROPY:
            score = -tl.sum(tl.where(probability > 0, probability * log_probability, 0.0), axis=0) / factor
        if RULE == MARGIN:
            others = tl.where(real & (label.to(tl.float64) != prediction), probability, -1.0)
            score = confidence - tl.max(others, axis=0)
        passes = compared(score, threshold, SURER, STRICT)
        leaves = tl.where(everybody != 0, 1.0, passes.to(tl.float64))
        if RULE == NO_SCORE:
            leaves = everybody
        tl.store(after, prediction)
        tl.store(after + 1, score)
        tl.store(answer + 2 + label, log_probability, mask=real)
        tl.store(answer + 1, score)
        tl.store(answer, leaves)
