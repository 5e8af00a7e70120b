"""
What an exit says about one word of each of some rows, and who leaves: the most probable word, its probability, and a
step of the policy in one kernel, where torch's operations would be some twenty launches over the vocabulary.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.common.kernel_launch import launch, power_of_two
from beem_plugin.decoding.word_rule import WordRule

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
    def read_words(logits, words, RULE: tl.constexpr, BLOCK: tl.constexpr, ROOM: tl.constexpr):
        """
        The most probable of `words` words, the first of equal ones; how far its logit is below the logarithm of the
        sum of all, in float32; the entropy, and how much more probable it is than the next, where the rule asks.
        """
        highest = -1.0e30
        second = -1.0e30
        said = tl.program_id(0) * 0
        total = 0.0
        weighed = 0.0  # the sum of exp(x) x
        for start in range(0, ROOM, BLOCK):
            column = start + tl.arange(0, BLOCK)
            real = column < words
            logit = tl.load(logits + column, mask=real, other=-1.0e30).to(tl.float32)
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
        said = tl.minimum(said, words - 1)  # where no logit is a number, none is the highest
        log_total = tl.log(total)
        entropy = (log_total - weighed / total).to(tl.float64)
        margin = tl.exp(-log_total).to(tl.float64) - tl.exp(second - highest - log_total).to(tl.float64)
        return said, log_total, entropy, margin

    @triton.jit
    def judge(
        said,
        log_total,
        entropy,
        margin,
        numbers,
        moves,
        label,
        score,
        first,
        RULE: tl.constexpr,
        SURER: tl.constexpr,
        STRICT: tl.constexpr,
        RESTART: tl.constexpr,
        MOVES: tl.constexpr,
    ):
        """
        A step of the rule in float64: whether the word leaves, and the score. `numbers`: see `FusedRule`; `moves`: see
        `WordRule`, of the word's position; `label` and `score`: where what the rule remembers lies, which at the
        `first` exit of a word is of the word before.
        """
        confidence = tl.exp(-log_total).to(tl.float64)
        factor = tl.load(numbers)
        threshold = tl.load(numbers + 1)
        everybody = tl.load(numbers + 2)
        is_first = tl.load(numbers + 3)
        last_label = tl.where(first, -1.0, tl.load(label))
        last_score = tl.where(first, 0.0, tl.load(score))
        agrees = said.to(tl.float64) == last_label
        now = scored(confidence, agrees, last_score, factor, is_first, RULE, RESTART)
        if RULE == ENTROPY:
            now = entropy / factor
        if RULE == MARGIN:
            now = margin
        seen = now
        if MOVES:
            seen = now * tl.load(moves) + tl.load(moves + 1)
        leaves = tl.where(everybody != 0, 1.0, compared(seen, threshold, SURER, STRICT).to(tl.float64))
        if RULE == NO_SCORE:
            leaves = everybody
        return leaves, now

    @triton.jit
    def decide_words(
        logits,
        rows,
        positions,
        numbers,
        moves,
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
        MOVES: tl.constexpr,
        BLOCK: tl.constexpr,
        ROOM: tl.constexpr,
    ):
        """
        A row. Probabilities in float32, as a trace keeps them; the rule in float64.
        """
        slot = tl.program_id(0).to(tl.int64)
        row = tl.load(rows + slot)
        said, log_total, entropy, margin = read_words(logits + slot * words, words, RULE, BLOCK, ROOM)
        if MOVES:
            moves += 2 * tl.load(positions + slot)
        leaves, now = judge(
            said,
            log_total,
            entropy,
            margin,
            numbers,
            moves,
            label + row,
            score + row,
            FIRST,
            RULE,
            SURER,
            STRICT,
            RESTART,
            MOVES,
        )
        if LAST:
            leaves = leaves * 0.0 + 1.0
        prediction = said.to(tl.float64)
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

    known : `WordRule`
    rows : `int`
    room : `int`
        Words of a caption.
    device : `torch.device`
    """

    def __init__(self, known: WordRule, rows: int, room: int, device: torch.device) -> None:
        self.rule = known.rule
        self.numbers = torch.tensor(known.rule.numbers, dtype=torch.float64, device=device)
        self.moves = known.moves(room, device)
        self.label = torch.full((rows,), -1.0, dtype=torch.float64, device=device)
        self.score = torch.zeros(rows, dtype=torch.float64, device=device)

    def decide(
        self,
        exit_number: int,
        logits: Tensor,
        rows: Tensor,
        positions: Tensor,
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
        rows, positions : `Tensor`
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
            positions,
            self.numbers[exit_number - 1],
            self.numbers if self.moves is None else self.moves,
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
            MOVES=self.moves is not None,
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
