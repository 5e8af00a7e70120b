"""The end of a launch: tokens that exit are appended to their captions, all others enter the next block."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.decoding.mixed_depths.state import DecodingState
from beem_plugin.kernels.launch import jit, power_of_two, tl


@jit()
def advance_kernel(
    leaves,
    layers,
    positions,
    exit_of_block,
    at_exit,
    token,
    log_probability,
    tokens,
    exits,
    log_probabilities,
    hidden,
    token_embeddings,
    position_embeddings,
    max_tokens,
    size,
    eos,
    last_exit,
    SIZE: tl.constexpr,
):
    """A caption."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.load(layers + row)
    if block >= 0:
        next_block = block + 1
        position = tl.load(positions + row)
        next_position = position
        exit_number = tl.load(at_exit + row).to(tl.int32)
        leaving = (tl.load(leaves + row) != 0) | (exit_number == last_exit)
        if (exit_number > 0) & leaving:
            chosen = tl.load(token + row)
            place = row * max_tokens + position
            tl.store(tokens + place, chosen.to(tl.int32))
            tl.store(exits + place, exit_number)
            tl.store(log_probabilities + place, tl.load(log_probability + row))
            next_block = 0 * block
            if (chosen == eos) | (position + 1 == max_tokens):
                next_block = 0 * block - 1
            else:
                column = tl.arange(0, SIZE)
                inside = column < size
                token_row = token_embeddings + chosen * size + column
                position_row = position_embeddings + (position + 1) * size + column
                state = tl.load(token_row, mask=inside, other=0.0).to(tl.float32)
                state += tl.load(position_row, mask=inside, other=0.0).to(tl.float32)
                tl.store(hidden + (place + 1) * size + column, state.to(hidden.dtype.element_ty), mask=inside)
                next_position = position + 1
        tl.debug_barrier()  # every warp has read the row's block, position and exit before they are written
        tl.store(positions + row, next_position)
        tl.store(layers + row, next_block)
        next_exit = tl.load(exit_of_block + next_block, mask=next_block >= 0, other=0)
        tl.store(at_exit + row, next_exit.to(tl.int64))


def advance(state: DecodingState, rows: int, leaves: Tensor, exit_of_block: Tensor, eos: int, last_exit: int) -> None:
    """`leaves` `(rows,)` bool: rows that exit, if at an exit; `exit_of_block` `(blocks,)` int32, 0 for none."""
    if not state.use_kernels:
        advance_reference(state, rows, leaves, exit_of_block, eos, last_exit)
        return
    given: dict[str, Any] = {
        "leaves": leaves.view(torch.uint8),
        "exit_of_block": exit_of_block,
        "eos": eos,
        "last_exit": last_exit,
    }
    state.launch(advance_kernel, (rows,), **given, SIZE=power_of_two(state.size))


def advance_reference(
    state: DecodingState, rows: int, leaves: Tensor, exit_of_block: Tensor, eos: int, last_exit: int
) -> None:
    layers, at_exit = state.layers[:rows], state.at_exit[:rows]
    leaving = ((leaves & (at_exit > 0)) | (at_exit == last_exit)) & (layers >= 0)
    layers += (layers >= 0) & ~leaving
    for row in leaving.nonzero().flatten().tolist():
        position, token = int(state.positions[row]), int(state.token[row])
        state.tokens[row, position], state.exits[row, position] = token, int(at_exit[row])
        state.log_probabilities[row, position] = state.log_probability[row]
        ends = token == eos or position + 1 == state.max_tokens
        layers[row] = -1 if ends else 0
        if not ends:
            embedded = state.token_embeddings[token] + state.position_embeddings[position + 1]
            state.hidden[row * state.max_tokens + position + 1] = embedded
            state.positions[row] = position + 1
    at_exit.copy_(torch.where(layers >= 0, exit_of_block[layers.clamp_min(0)], 0))
