"""Exit summaries of tokens that are at different exits."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from torch import Tensor

from beem_plugin.decoding.mixed_depths.state import DecodingState
from beem_plugin.exits.token_signals import TokenSummary
from beem_plugin.kernels.launch import jit, power_of_two, tl

MAX_BLOCK = 4096
"""Maximum number of logits that a program reads at a time."""


@jit()
def summary_kernel(
    logits,
    exit_numbers,
    token,
    log_probability,
    confidence,
    margin,
    entropy,
    vocabulary,
    BLOCK: tl.constexpr,
    END: tl.constexpr,
):
    """One row in one pass: maximum, second maximum and the sums of softmax and entropy, in float32."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(exit_numbers + row) > 0:
        highest = -1.0e30
        second = -1.0e30
        best = tl.program_id(0) * 0
        total = 0.0
        weighted = 0.0  # the sum of exp(x) x
        for start in range(0, END, BLOCK):
            column = start + tl.arange(0, BLOCK)
            real = column < vocabulary
            logit = tl.load(logits + row * vocabulary + column, mask=real, other=-1.0e30).to(tl.float32)
            top = tl.max(logit, axis=0)
            place = tl.min(tl.where(logit == top, column, END), axis=0)
            next_one = tl.max(tl.where(column == place, -1.0e30, logit), axis=0)
            second = tl.maximum(tl.minimum(top, highest), tl.maximum(second, next_one))
            best = tl.where(top > highest, place, best)
            higher = tl.maximum(highest, top)
            below = tl.where(real, logit - higher, -1.0e30)
            share = tl.where(real, tl.exp(below), 0.0)
            moved = highest - higher
            shrunk = tl.exp(moved)
            before = tl.where(total > 0, shrunk * (weighted + moved * total), 0.0)
            weighted = before + tl.sum(tl.where(share > 0, share * below, 0.0), axis=0)
            total = total * shrunk + tl.sum(share, axis=0)
            highest = higher
        best = tl.minimum(best, vocabulary - 1)  # if all logits are NaN, none is the highest
        log_total = tl.log(total)
        top_probability = tl.exp(-log_total)
        tl.store(token + row, best.to(tl.int64))
        tl.store(log_probability + row, 0.0 - log_total)
        tl.store(confidence + row, top_probability.to(tl.float64))
        tl.store(margin + row, (top_probability - tl.exp(second - highest - log_total)).to(tl.float64))
        tl.store(entropy + row, (log_total - weighted / total).to(tl.float64))


def summarize(state: DecodingState, rows: int, exit_numbers: Tensor) -> None:
    """Writes the summary of the rows whose `exit_numbers` `(rows,)` are not 0, from their logits."""
    if not state.use_kernels:
        chosen = (exit_numbers > 0).nonzero().flatten()
        summary = TokenSummary.of(state.logits[chosen])
        state.token[chosen] = summary.top_token
        state.log_probability[chosen] = summary.log_probabilities.amax(-1)
        state.confidence[chosen] = summary.top_probability.double()
        state.margin[chosen] = summary.margin.double()
        state.entropy[chosen] = summary.entropy.double()
        return
    vocabulary = state.logits.shape[1]
    block = min(MAX_BLOCK, power_of_two(vocabulary))
    given = {"exit_numbers": exit_numbers, "vocabulary": vocabulary}
    state.launch(summary_kernel, (rows,), 8, **given, BLOCK=block, END=-(-vocabulary // block) * block)
