"""Lists of the tokens that a launch computes, by block, and of the tokens whose logits it computes."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.decoding.mixed_depths.state import DecodingState
from beem_plugin.kernels.launch import launch, power_of_two

try:
    import triton
    import triton.language as tl
except ImportError:  # not every platform has Triton
    triton = None

PLACES = 1024
"""Places that a program reads at a time."""

if triton is not None:

    @triton.jit
    def tokens_kernel(
        layers,
        positions,
        exit_of_block,
        at_exit,
        filled,
        recomputed,
        listed,
        counts,
        rows,
        max_tokens,
        capacity,
        ROWS: tl.constexpr,
        PLACES: tl.constexpr,
        LEAVES: tl.constexpr,
        MARKS: tl.constexpr,
    ):
        """A block: the current tokens of the captions in it, then their earlier tokens that skipped it."""
        block = tl.program_id(0)
        row = tl.arange(0, ROWS)
        row_block = tl.load(layers + row, mask=row < rows, other=-1)
        in_block = row_block == block
        position = tl.load(positions + row, mask=row < rows, other=0)
        if block == 0:
            exit_number = tl.load(exit_of_block + row_block, mask=row_block >= 0, other=0)
            tl.store(at_exit + row, exit_number.to(tl.int64), mask=row < rows)
        first = listed + block * capacity
        rank = tl.cumsum(in_block.to(tl.int32), axis=0) - 1
        tl.store(first + rank, row * max_tokens + position, mask=in_block)
        count = tl.sum(in_block.to(tl.int32), axis=0)
        total = count
        if LEAVES:  # noqa: SIM102  a compile-time condition
            if count > 0:
                start = block * 0
                while start < rows * max_tokens:
                    place = start + tl.arange(0, PLACES)
                    real = place < rows * max_tokens
                    place_row = place // max_tokens
                    current = tl.load(positions + place_row, mask=real, other=0)
                    mine = real & (tl.load(layers + place_row, mask=real, other=-1) == block)
                    depth = tl.load(filled + place, mask=mine, other=-1)
                    place_position = place - place_row * max_tokens
                    skipped = mine & (place_position < current) & (depth == block)
                    processed = skipped | (mine & (place_position == current))
                    tl.store(filled + place, place * 0 + block + 1, mask=processed)
                    behind = total + tl.cumsum(skipped.to(tl.int32), axis=0) - 1
                    tl.store(first + behind, place, mask=skipped)
                    if MARKS:
                        tl.store(recomputed + place, processed.to(tl.int32), mask=mine)
                    total += tl.sum(skipped.to(tl.int32), axis=0)
                    start += PLACES
        tl.store(counts + 2 * block, count)
        tl.store(counts + 2 * block + 1, total)

    @triton.jit
    def heads_kernel(
        exit_numbers,
        positions,
        head_places,
        head_exits,
        head_counts,
        rows,
        max_tokens,
        capacity,
        ROWS: tl.constexpr,
        SHARED: tl.constexpr,
    ):
        """The tokens whose logits are computed: all of them if SHARED, else those at the program's exit."""
        group = tl.program_id(0)
        row = tl.arange(0, ROWS)
        exit_number = tl.load(exit_numbers + row, mask=row < rows, other=0).to(tl.int32)
        position = tl.load(positions + row, mask=row < rows, other=0)
        chosen = exit_number > 0
        if not SHARED:
            chosen = exit_number == group + 1
        rank = group * capacity + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        tl.store(head_places + rank, row * max_tokens + position, mask=chosen)
        tl.store(head_exits + rank, exit_number, mask=chosen)
        tl.store(head_counts + 2 * group, tl.sum(chosen.to(tl.int32), axis=0))


def list_tokens(state: DecodingState, rows: int, exit_of_block: Tensor, leaves_early: bool, recomputes: bool) -> None:
    """
    # Parameters

    state : `DecodingState`
        `listed`, `counts` and `at_exit` are written, and `filled` as it is after the launch.
    rows : `int`
        Number of captions that are looked at, from the first on.
    exit_of_block : `Tensor`
        `(blocks,)` int32: the number of the exit after each block, 0 for none that is evaluated.
    leaves_early : `bool`
        Whether tokens may have skipped blocks.
    recomputes : `bool`
        Whether `recomputed` is written.
    """
    if not state.use_kernels:
        list_tokens_reference(state, rows, exit_of_block, leaves_early, recomputes)
        return
    launch(
        tokens_kernel,
        (state.num_layers,),
        state.layers,
        state.positions,
        exit_of_block,
        state.at_exit,
        state.filled,
        state.recomputed,
        state.listed,
        state.counts,
        rows,
        state.max_tokens,
        state.listed.shape[1],
        ROWS=power_of_two(rows),
        PLACES=min(PLACES, power_of_two(rows * state.max_tokens)),
        LEAVES=leaves_early,
        MARKS=recomputes,
    )


def list_tokens_reference(
    state: DecodingState, rows: int, exit_of_block: Tensor, leaves_early: bool, recomputes: bool
) -> None:
    layers, positions = state.layers[:rows], state.positions[:rows]
    state.at_exit[:rows] = torch.where(layers >= 0, exit_of_block[layers.clamp_min(0)], 0)
    position = torch.arange(state.max_tokens, device=layers.device)
    for block in range(state.num_layers):
        in_block = (layers == block).unsqueeze(1)
        current = in_block & (position == positions.unsqueeze(1))
        filled = state.filled[:rows]
        skipped = in_block & (position < positions.unsqueeze(1)) & (filled == block) & leaves_early
        found = torch.cat([one.flatten().nonzero().flatten() for one in (current, skipped)])
        state.listed[block, : len(found)] = found.to(torch.int32)
        state.counts[block] = torch.stack([current.sum(), (current | skipped).sum()])
        if leaves_early:
            filled[current | skipped] = block + 1
        if recomputes:
            state.recomputed[:rows] = torch.where(in_block, (current | skipped).int(), state.recomputed[:rows])


def list_heads(state: DecodingState, rows: int, exit_numbers: Tensor) -> None:
    """
    # Parameters

    state : `DecodingState`
        `head_places`, `head_exits` and `head_counts` are written.
    rows : `int`
    exit_numbers : `Tensor`
        `(rows,)` int64: the exit whose logits each row needs, 0 for none.
    """
    groups = len(state.head_counts)
    if not state.use_kernels:
        list_heads_reference(state, rows, exit_numbers)
        return
    launch(
        heads_kernel,
        (groups,),
        exit_numbers,
        state.positions,
        state.head_places,
        state.head_exits,
        state.head_counts,
        rows,
        state.max_tokens,
        state.capacity,
        ROWS=power_of_two(rows),
        SHARED=groups == 1,
    )


def list_heads_reference(state: DecodingState, rows: int, exit_numbers: Tensor) -> None:
    groups, exit_numbers = len(state.head_counts), exit_numbers[:rows]
    for group in range(groups):
        found = (exit_numbers > 0 if groups == 1 else exit_numbers == group + 1).nonzero().flatten()
        state.head_places[group, : len(found)] = state.places(rows)[found].to(torch.int32)
        state.head_exits[group, : len(found)] = exit_numbers[found].to(torch.int32)
        state.head_counts[group, 0] = len(found)
