"""Which words a launch works on when each is at a depth of its own: lists by block, made on the device."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from beem_plugin.common.kernel_launch import launch, power_of_two
from beem_plugin.decoding.mixed_state import MixedState

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

WORDS = 1024
"""That a program looks through at a time."""

if triton is not None:

    @triton.jit
    def list_kernel(
        layers,
        positions,
        asked,
        filled,
        worked,
        listed,
        counts,
        heads,
        rows,
        room,
        capacity,
        LAYERS: tl.constexpr,
        ROWS: tl.constexpr,
        WORDS: tl.constexpr,
        LEAVES: tl.constexpr,
        MARKS: tl.constexpr,
    ):
        """
        A block, or, last of all, the heads. First come the words of the captions that are there, then words that were
        said before and skipped the block.
        """
        block = tl.program_id(0)
        row = tl.arange(0, ROWS)
        at = tl.load(layers + row, mask=row < rows, other=-1)
        here = at == block
        position = tl.load(positions + row, mask=row < rows, other=0)
        exit_number = tl.load(asked + at, mask=at >= 0, other=0)
        if block == LAYERS:
            here = exit_number > 0
        first = listed + block * capacity
        rank = tl.cumsum(here.to(tl.int32), axis=0) - 1
        tl.store(heads + rank, exit_number, mask=here & (block == LAYERS))
        tl.store(first + rank, row * room + position, mask=here)
        count = tl.sum(here.to(tl.int32), axis=0)
        total = count
        if LEAVES:  # noqa: SIM102  decided when it is compiled
            if (block < LAYERS) & (count > 0):
                start = block * 0
                while start < rows * room:
                    place = start + tl.arange(0, WORDS)
                    real = place < rows * room
                    of_row = place // room
                    current = tl.load(positions + of_row, mask=real, other=0)
                    mine = real & (tl.load(layers + of_row, mask=real, other=-1) == block)
                    done = tl.load(filled + place, mask=mine, other=-1)
                    position_here = place - of_row * room
                    skipped = mine & (position_here < current) & (done == block)
                    now = skipped | (mine & (position_here == current))
                    tl.store(filled + place, place * 0 + block + 1, mask=now)
                    behind = total + tl.cumsum(skipped.to(tl.int32), axis=0) - 1
                    tl.store(first + behind, place, mask=skipped)
                    if MARKS:
                        tl.store(worked + place, now.to(tl.int32), mask=mine)
                    total += tl.sum(skipped.to(tl.int32), axis=0)
                    start += WORDS
        tl.store(counts + 2 * block, count)
        tl.store(counts + 2 * block + 1, total)


def list_words(state: MixedState, rows: int, leaves_early: bool, recomputes: bool) -> None:
    """
    # Parameters

    state : `MixedState`
        Gets `listed`, `counts` and `heads`, and in `filled` what will be there when the listed words have gone through
        their blocks.
    rows : `int`
        The captions that are looked at, from the first on.
    leaves_early : `bool`
        Whether words may have skipped blocks.
    recomputes : `bool`
        Whether `worked` is to say which words are listed.
    """
    launch(
        list_kernel,
        (state.num_layers + 1,),
        state.layers,
        state.positions,
        state.asked,
        state.filled,
        state.worked,
        state.listed,
        state.counts,
        state.heads,
        rows,
        state.room,
        state.listed.shape[1],
        LAYERS=state.num_layers,
        ROWS=power_of_two(rows),
        WORDS=min(WORDS, power_of_two(rows * state.room)),
        LEAVES=leaves_early,
        MARKS=recomputes,
    )
