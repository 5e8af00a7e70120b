"""The end of a launch: tokens that exit are appended to their captions, all others enter the next block."""

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

if triton is not None:

    @triton.jit
    def advance_kernel(
        leaves,
        layers,
        positions,
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
            exit_number = tl.load(at_exit + row).to(tl.int32)
            leaving = (tl.load(leaves + row) != 0) | (exit_number == last_exit)
            if (exit_number > 0) & leaving:
                position = tl.load(positions + row)
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
                    tl.store(positions + row, position + 1)
            tl.debug_barrier()  # every warp has read the row's block before it is written
            tl.store(layers + row, next_block)


def advance(state: DecodingState, rows: int, leaves: Tensor, eos: int, last_exit: int) -> None:
    """
    # Parameters

    state : `DecodingState`
    rows : `int`
    leaves : `Tensor`
        `(rows,)` bool: which rows exit, where they are at an exit.
    eos : `int`
        The token that ends a caption.
    last_exit : `int`
        The exit at which all rows exit.
    """
    if not state.use_kernels:
        advance_reference(state, rows, leaves, eos, last_exit)
        return
    size = state.hidden.shape[1]
    launch(
        advance_kernel,
        (rows,),
        leaves.view(torch.uint8),
        state.layers,
        state.positions,
        state.at_exit,
        state.token,
        state.log_probability,
        state.tokens,
        state.exits,
        state.log_probabilities,
        state.hidden,
        state.weights.token_embeddings,
        state.weights.position_embeddings,
        state.max_tokens,
        size,
        eos,
        last_exit,
        SIZE=power_of_two(size),
        num_warps=4,
    )


def advance_reference(state: DecodingState, rows: int, leaves: Tensor, eos: int, last_exit: int) -> None:
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
            weights = state.weights
            embedded = weights.token_embeddings[token] + weights.position_embeddings[position + 1]
            state.hidden[row * state.max_tokens + position + 1] = embedded
            state.positions[row] = position + 1
