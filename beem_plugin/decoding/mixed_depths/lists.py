"""Lists of the tokens that a launch computes: by block, and by vocabulary matrix."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.decoding.mixed_depths.state import DecodingState
from beem_plugin.kernels.launch import jit, power_of_two, tl

PLACES = 1024
"""Places that a program reads at a time."""


@jit()
def list_kernel(
    groups,
    positions,
    filled,
    recomputed,
    listed,
    counts,
    rows,
    max_tokens,
    capacity,
    OFFSET: tl.constexpr,
    ROWS: tl.constexpr,
    PLACES: tl.constexpr,
    SHARED: tl.constexpr,
    FILLS: tl.constexpr,
    SKIPS: tl.constexpr,
    MARKS: tl.constexpr,
):
    """
    A group: the current tokens of the rows in it, or of all rows in any if SHARED; if SKIPS, then the rows' earlier
    tokens that skipped this block.
    """
    group = tl.program_id(0)
    row = tl.arange(0, ROWS)
    of_row = tl.load(groups + row, mask=row < rows, other=OFFSET - 1) - OFFSET
    in_group = of_row >= 0
    if not SHARED:
        in_group = of_row == group
    at = row * max_tokens + tl.load(positions + row, mask=row < rows, other=0)
    first = listed + group * capacity
    tl.store(first + tl.cumsum(in_group.to(tl.int32), axis=0) - 1, at, mask=in_group)
    count = tl.sum(in_group.to(tl.int32), axis=0)
    total = count
    if FILLS:
        tl.store(filled + at, row * 0 + group + 1, mask=in_group)
    if SKIPS:  # noqa: SIM102  a compile-time condition
        if count > 0:
            start = group * 0
            while start < rows * max_tokens:
                place = start + tl.arange(0, PLACES)
                real = place < rows * max_tokens
                place_row = place // max_tokens
                position = place - place_row * max_tokens
                mine = real & (tl.load(groups + place_row, mask=real, other=-1) == group)
                current = tl.load(positions + place_row, mask=real, other=0)
                depth = tl.load(filled + place, mask=mine, other=-1)
                skipped = mine & (position < current) & (depth == group)
                tl.store(filled + place, place * 0 + group + 1, mask=skipped)
                behind = total + tl.cumsum(skipped.to(tl.int32), axis=0) - 1
                tl.store(first + behind, place, mask=skipped)
                if MARKS:
                    tl.store(recomputed + place, (skipped | (position == current)).to(tl.int32), mask=mine)
                total += tl.sum(skipped.to(tl.int32), axis=0)
                start += PLACES
    tl.store(counts + 2 * group, count)
    tl.store(counts + 2 * group + 1, total)


def list_tokens(state: DecodingState, rows: int, fills: bool, skips: bool, marks: bool) -> None:
    """
    Writes `listed` and `counts` of the first `rows` captions. `fills`: also writes `filled` as it is after the launch;
    `skips`: lists tokens that skipped a block, too; `marks`: writes `recomputed`.
    """
    if not state.use_kernels:
        list_tokens_reference(state, rows, fills, skips, marks)
        return
    state.launch(
        list_kernel,
        (state.num_layers,),
        groups=state.layers,
        rows=rows,
        capacity=state.listed.shape[1],
        OFFSET=0,
        ROWS=power_of_two(rows),
        PLACES=min(PLACES, power_of_two(rows * state.max_tokens)),
        SHARED=False,
        FILLS=fills,
        SKIPS=skips,
        MARKS=marks,
    )


def list_tokens_reference(state: DecodingState, rows: int, fills: bool, skips: bool, marks: bool) -> None:
    layers, positions, filled = state.layers[:rows, None], state.positions[:rows, None], state.filled[:rows]
    position = torch.arange(state.max_tokens, device=layers.device)
    for block in range(state.num_layers):
        in_block = layers == block
        current = in_block & (position == positions)
        skipped = in_block & (position < positions) & (filled == block) & skips
        found = torch.cat([one.flatten().nonzero().flatten() for one in (current, skipped)])
        state.listed[block, : len(found)] = found.to(torch.int32)
        state.counts[block] = torch.stack([current.sum(), (current | skipped).sum()])
        if fills:
            filled[current | skipped] = block + 1
        if marks:
            state.recomputed[:rows] = torch.where(in_block, (current | skipped).int(), state.recomputed[:rows])


def list_heads(state: DecodingState, rows: int, exit_numbers: Tensor) -> None:
    """Writes `head_places` and `head_counts`; `exit_numbers` `(rows,)` int64: exit of the logits, 0 for none."""
    is_shared = len(state.head_counts) == 1
    if not state.use_kernels:
        for group in range(len(state.head_counts)):
            found = (exit_numbers > 0 if is_shared else exit_numbers == group + 1).nonzero().flatten()
            state.head_places[group, : len(found)] = state.places(rows)[found].to(torch.int32)
            state.head_counts[group] = len(found)
        return
    state.launch(
        list_kernel,
        (len(state.head_counts),),
        groups=exit_numbers,
        listed=state.head_places,
        counts=state.head_counts,
        rows=rows,
        OFFSET=1,
        ROWS=power_of_two(rows),
        PLACES=1,
        SHARED=is_shared,
        FILLS=False,
        SKIPS=False,
        MARKS=False,
    )
