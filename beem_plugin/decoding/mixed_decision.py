"""What exits say about words of which each is at an exit of its own: who leaves, and where each caption goes next."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from torch import Tensor

from beem_plugin.common.kernel_launch import launch, power_of_two
from beem_plugin.decoding.mixed_state import BlockWeights, MixedState
from beem_plugin.decoding.word_decision import WORDS, RuleMemory

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

if triton is not None:
    from beem_plugin.decoding.word_decision import judge, read_words

    @triton.jit
    def advance_kernel(
        logits,
        layers,
        positions,
        launches,
        asked,
        numbers,
        moves,
        label,
        score,
        said_words,
        exits,
        log_probabilities,
        hidden,
        word_embeddings,
        position_embeddings,
        words,
        room,
        size,
        end,
        first_exit,
        last_exit,
        RULE: tl.constexpr,
        SURER: tl.constexpr,
        STRICT: tl.constexpr,
        RESTART: tl.constexpr,
        MOVES: tl.constexpr,
        BLOCK: tl.constexpr,
        ROOM: tl.constexpr,
        SIZE: tl.constexpr,
    ):
        """
        A caption. Whoever leaves says a word, and its next word begins at the first block; the others go on to the next
        block.
        """
        row = tl.program_id(0).to(tl.int64)
        if row == 0:
            tl.store(launches, tl.load(launches) + 1)
        block = tl.load(layers + row)
        if block >= 0:
            next_block = block + 1
            exit_number = tl.load(asked + block)
            if exit_number > 0:
                said, log_total, entropy, margin = read_words(logits + row * words, words, RULE, BLOCK, ROOM)
                first = exit_number == first_exit
                position = tl.load(positions + row)
                leaves, now = judge(
                    said,
                    log_total,
                    entropy,
                    margin,
                    numbers + (exit_number - 1) * 4,
                    moves + 2 * position,
                    label + row,
                    score + row,
                    first,
                    RULE,
                    SURER,
                    STRICT,
                    RESTART,
                    MOVES,
                )
                tl.debug_barrier()  # every warp has read what is written now
                tl.store(label + row, said.to(tl.float64))
                tl.store(score + row, now)
                if (leaves != 0) | (exit_number == last_exit):
                    place = row * room + position
                    tl.store(said_words + place, said)
                    tl.store(exits + place, exit_number)
                    tl.store(log_probabilities + place, 0.0 - log_total)
                    next_block = 0 * block
                    if (said == end) | (position + 1 == room):
                        next_block = 0 * block - 1
                    else:
                        column = tl.arange(0, SIZE)
                        inside = column < size
                        of_word = word_embeddings + said.to(tl.int64) * size + column
                        of_position = position_embeddings + (position + 1) * size + column
                        state = tl.load(of_word, mask=inside, other=0.0).to(tl.float32)
                        state += tl.load(of_position, mask=inside, other=0.0).to(tl.float32)
                        tl.store(hidden + (place + 1) * size + column, state.to(hidden.dtype.element_ty), mask=inside)
                        tl.store(positions + row, position + 1)
            tl.debug_barrier()
            tl.store(layers + row, next_block)


def advance(
    state: MixedState,
    rows: int,
    memory: RuleMemory,
    logits: Tensor,
    hidden: Tensor,
    weights: BlockWeights,
    end: int,
    first_exit: int,
    last_exit: int,
) -> None:
    """
    # Parameters

    state : `MixedState`
        Goes on by one launch.
    rows : `int`
    memory : `RuleMemory`
    logits : `Tensor`
        `(captions, words)` of those whose word is at an exit.
    hidden : `Tensor`
        `(words, hidden)`: gets the next words' embeddings.
    weights : `BlockWeights`
    end : `int`
        The word that ends a caption.
    first_exit, last_exit : `int`
        The first exit that is asked, and the one at which everybody leaves.
    """
    words, rule = logits.shape[1], memory.rule
    block = min(WORDS, power_of_two(words))
    launch(
        advance_kernel,
        (rows,),
        logits,
        state.layers,
        state.positions,
        state.launches,
        state.asked,
        memory.numbers,
        memory.numbers if memory.moves is None else memory.moves,
        memory.label,
        memory.score,
        state.said,
        state.exits,
        state.log_probabilities,
        hidden,
        weights.word_embeddings,
        weights.position_embeddings,
        words,
        state.room,
        hidden.shape[1],
        end,
        first_exit,
        last_exit,
        RULE=rule.kind,
        SURER=rule.surer,
        STRICT=rule.strict,
        RESTART=rule.restart,
        MOVES=memory.moves is not None,
        BLOCK=block,
        ROOM=-(-words // block) * block,
        SIZE=power_of_two(hidden.shape[1]),
        num_warps=8,
    )
