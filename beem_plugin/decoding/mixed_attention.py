"""Attention of words of which each is in a block of its own, and copies of what they attend to."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from torch import Tensor

from beem_plugin.common.kernel_launch import launch, power_of_two
from beem_plugin.decoding.mixed_state import MixedState
from beem_plugin.decoding.row_attention import keys_at_a_time

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

WARPS = 4

if triton is not None:
    from beem_plugin.decoding.row_attention import mixed_values

    @triton.jit
    def attend_kernel(
        query,
        keys,
        values,
        layers,
        positions,
        worked,
        scales,
        attended,
        room,
        length,
        size,
        layer_stride,
        HEADS: tl.constexpr,
        LENGTH: tl.constexpr,
        SIZE: tl.constexpr,
        KEYS: tl.constexpr,
        OWN: tl.constexpr,
        MARKED: tl.constexpr,
    ):
        """
        A head of a caption's present word; with MARKED of any word that is at work. With OWN it looks at the words up
        to itself, else at all keys.
        """
        index = tl.program_id(0)
        head = tl.program_id(1)
        row = index // room if MARKED else index
        block = tl.load(layers + row)
        position = tl.load(positions + tl.maximum(row, 0))
        works = block >= 0
        if MARKED:
            place = index.to(tl.int64)
            now = position
            position = index - row * room
            works = works & (position <= now)
            works = works & ((position == now) | (tl.load(worked + place) != 0))
        else:
            place = row.to(tl.int64) * room + position
        if works:
            column = tl.arange(0, SIZE)
            inside = column < size
            at = place * HEADS * size + head * size + column
            asked = tl.load(query + at, mask=inside, other=0.0).to(tl.float32) * tl.load(scales + block)
            base = block.to(tl.int64) * layer_stride + (row.to(tl.int64) * HEADS + head) * length * size
            last = length - 1
            if OWN:
                last = position
            mixed = mixed_values(asked, keys + base, values + base, last, size, LENGTH, SIZE, KEYS)
            tl.store(attended + at, mixed.to(attended.dtype.element_ty), mask=inside)

    @triton.jit
    def copy_kernel(
        listed, counts, keys, values, capacity, room, size, layer_stride, HEADS: tl.constexpr, BLOCK: tl.constexpr
    ):
        """Gives words that skipped a block the keys and values that they have in the block before."""
        block = tl.program_id(0)
        count = tl.load(counts + 2 * block)
        total = tl.load(counts + 2 * block + 1)
        column = tl.arange(0, BLOCK)
        inside = column < HEADS * size
        head = column // size
        slot = count + tl.program_id(1)
        while slot < total:
            place = tl.load(listed + block * capacity + slot).to(tl.int64)
            row = place // room
            at = block.to(tl.int64) * layer_stride
            at += ((row * HEADS + head) * room + place - row * room) * size + column - head * size
            tl.store(keys + at, tl.load(keys + at - layer_stride, mask=inside), mask=inside)
            tl.store(values + at, tl.load(values + at - layer_stride, mask=inside), mask=inside)
            slot += tl.num_programs(1)


def mixed_attend(
    state: MixedState,
    rows: int,
    query: Tensor,
    stored: tuple[Tensor, Tensor],
    scales: Tensor,
    attended: Tensor,
    own: bool,
    recomputes: bool,
) -> None:
    """
    # Parameters

    state : `MixedState`
    rows : `int`
    query, attended : `Tensor`
        `(words, heads * size)`
    stored : `tuple[Tensor, Tensor]`
        All keys and all values of a `RowStore`, `(blocks, captions, heads, keys, size)`.
    scales : `Tensor`
        `(blocks,)`
    own : `bool`
        Whether these are the words', or the images', to all of which each word looks.
    recomputes : `bool`
        Whether words that skipped the block ask, too.
    """
    keys, values = stored
    _, _, heads, length, size = keys.shape
    launch(
        attend_kernel,
        (rows * state.room if recomputes else rows, heads),
        query,
        keys,
        values,
        state.layers,
        state.positions,
        state.worked,
        scales,
        attended,
        state.room,
        length,
        size,
        keys.stride(0),
        HEADS=heads,
        LENGTH=length,
        SIZE=power_of_two(size),
        KEYS=keys_at_a_time(length, size),
        OWN=own,
        MARKED=recomputes,
        num_warps=WARPS,
    )


def copy_skipped(state: MixedState, rows: int, stored: tuple[Tensor, Tensor]) -> None:
    """
    # Parameters

    state, rows, stored
        As in `mixed_attend`.
    """
    keys, values = stored
    _, _, heads, room, size = keys.shape
    launch(
        copy_kernel,
        (state.num_layers, rows),
        state.listed,
        state.counts,
        keys,
        values,
        state.listed.shape[1],
        room,
        size,
        keys.stride(0),
        HEADS=heads,
        BLOCK=power_of_two(heads * size),
    )
