"""
What an exit says about one word of each of some rows, and who leaves: the most probable word, its probability, and a
step of the policy in one kernel, where torch's operations would be some twenty launches over the vocabulary.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.common.kernel_launch import launch, power_of_two
from beem_plugin.execution.fused_rule import FusedRule

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

WORDS = 4096
"""That one program reads at a time."""
ANSWER = 3
"""Numbers of an answer: whether the row leaves, the word, its log-probability."""

if triton is not None:
    from beem_plugin.execution.fused_kernels import ENTROPY, MARGIN, NO_SCORE, compared, scored

    @triton.jit
    def decide_words(
        logits,
        rows,
        numbers,
        label,
        score,
        tokens,
        answers,
        words,
        RULE: tl.constexpr,
        SURER: tl.constexpr,
        STRICT: tl.constexpr,
        RESTART: tl.constexpr,
        FIRST: tl.constexpr,
        LAST: tl.constexpr,
        BLOCK: tl.constexpr,
        ROOM: tl.constexpr,
    ):
        """
        A row. `numbers`: the rule's weight or divisor, threshold, whether everybody leaves, whether it is exit 1.
        Probabilities in float32, as a trace keeps them; the rule in float64.
        """
        slot = tl.program_id(0).to(tl.int64)
        row = tl.load(rows + slot)
        highest = -1.0e30
        second = -1.0e30
        said = tl.program_id(0) * 0
        total = 0.0
        weighed = 0.0  # the sum of exp(x) x
        for start in range(0, ROOM, BLOCK):
            column = start + tl.arange(0, BLOCK)
            real = column < words
            logit = tl.load(logits + slot * words + column, mask=real, other=-1.0e30).to(tl.float32)
            top = tl.max(logit, axis=0)
            place = tl.min(tl.where(logit == top, column, ROOM), axis=0)
            next_one = tl.max(tl.where(column == place, -1.0e30, logit), axis=0)
            second = tl.maximum(tl.minimum(top, highest), tl.maximum(second, next_one))
            said = tl.where(top > highest, place, said)
            higher = tl.maximum(highest, top)
            below = tl.where(real, logit - higher, -1.0e30)
            share = tl.where(real, tl.exp(below), 0.0)
            moved = highest - higher
            shrunk = tl.exp(moved)
            if RULE == ENTROPY:
                # Both sums are relative to the highest logit so far.
                before = tl.where(total > 0, shrunk * (weighed + moved * total), 0.0)
                weighed = before + tl.sum(tl.where(share > 0, share * below, 0.0), axis=0)
            total = total * shrunk + tl.sum(share, axis=0)
            highest = higher
        log_total = tl.log(total)
        confidence = tl.exp(-log_total).to(tl.float64)
        prediction = said.to(tl.float64)
        factor = tl.load(numbers)
        threshold = tl.load(numbers + 1)
        everybody = tl.load(numbers + 2)
        is_first = tl.load(numbers + 3)
        last_label = tl.load(label + row)
        last_score = tl.load(score + row)
        if FIRST:  # what is there is of the word before
            last_label = last_label * 0.0 - 1.0
            last_score = last_score * 0.0
        now = scored(confidence, prediction == last_label, last_score, factor, is_first, RULE, RESTART)
        if RULE == ENTROPY:
            now = (log_total - weighed / total).to(tl.float64) / factor
        if RULE == MARGIN:
            now = confidence - tl.exp(second - highest - log_total).to(tl.float64)
        leaves = tl.where(everybody != 0, 1.0, compared(now, threshold, SURER, STRICT).to(tl.float64))
        if RULE == NO_SCORE:
            leaves = everybody
        if LAST:
            leaves = everybody * 0.0 + 1.0
        tl.store(label + row, prediction)
        tl.store(score + row, now)
        tl.store(tokens + row, said.to(tl.int64))
        tl.store(answers + slot * 3, leaves)
        tl.store(answers + slot * 3 + 1, prediction)
        tl.store(answers + slot * 3 + 2, (0.0 - log_total).to(tl.float64))


class RuleMemory:
    """
    What a rule that the kernel knows remembers of each row.

    # Parameters

    rule : `FusedRule`
    rows : `int`
    device : `torch.device`
    """

    def __init__(self, rule: FusedRule, rows: int, device: torch.device) -> None:
        self.rule = rule
        self.numbers = torch.tensor(rule.numbers, dtype=torch.float64, device=device)
        self.label = torch.full((rows,), -1.0, dtype=torch.float64, device=device)
        self.score = torch.zeros(rows, dtype=torch.float64, device=device)

    def decide(
        self,
        exit_number: int,
        logits: Tensor,
        rows: Tensor,
        tokens: Tensor,
        answers: Tensor,
        is_first: bool,
        is_last: bool,
    ) -> None:
        """
        # Parameters

        exit_number : `int`
        logits : `Tensor`
            `(n, words)`, contiguous.
        rows : `Tensor`
            `(n,)` int64
        tokens : `Tensor`
            `(rows,)` int64: gets the words.
        answers : `Tensor`
            `(n, 3)` float64: gets the answers, see `ANSWER`.
        is_first : `bool`
            Whether the rule is asked about the word for the first time.
        is_last : `bool`
            Whether everybody leaves.
        """
        count, words = logits.shape
        block = min(WORDS, power_of_two(words))
        launch(
            decide_words,
            (count,),
            logits,
            rows,
            self.numbers[exit_number - 1],
            self.label,
            self.score,
            tokens,
            answers,
            words,
            RULE=self.rule.kind,
            SURER=self.rule.surer,
            STRICT=self.rule.strict,
            RESTART=self.rule.restart,
            FIRST=is_first,
            LAST=is_last,
            BLOCK=block,
            ROOM=-(-words // block) * block,
            num_warps=8,
        )


def say(log_probabilities: Tensor, rows: Tensor, tokens: Tensor, answers: Tensor) -> None:
    """
    The most probable words, by torch's operations.

    # Parameters

    log_probabilities : `Tensor`
        `(n, words)`
    rows, tokens, answers : `Tensor`
        As in `RuleMemory.decide`; the first number of an answer is left alone.
    """
    best = log_probabilities.max(-1)
    tokens.index_copy_(0, rows, best.indices)
    answers[:, 1] = best.indices
    answers[:, 2] = best.values
