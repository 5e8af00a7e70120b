"""Attention of tokens that are in different blocks."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.decoding.mixed_depths.state import DecodingState
from beem_plugin.kernels.launch import jit, power_of_two, tl

ELEMENTS = 4096
"""Elements of keys that a program reads at a time."""


@jit()
def attention_kernel(
    query,
    keys,
    values,
    layers,
    positions,
    filled,
    recomputed,
    scales,
    result,
    max_tokens,
    length,
    head_size,
    layer_stride,
    HEADS: tl.constexpr,
    LENGTH: tl.constexpr,
    SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
    COPIES: tl.constexpr,
    MARKED: tl.constexpr,
):
    """
    A head of a caption's current token, or, if MARKED, of any place. The softmax is computed online. If COPIES, keys
    and values of a token that skipped the block are those of its last block.
    """
    index = tl.program_id(0)
    head = tl.program_id(1)
    row = index // max_tokens if MARKED else index
    block = tl.load(layers + row)
    current = tl.load(positions + row)
    active = block >= 0
    position = current
    if MARKED:
        position = index - row * max_tokens
        active = active & (position <= current)
        active = active & ((position == current) | (tl.load(recomputed + index) != 0))
    row_start = row.to(tl.int64) * max_tokens
    if active:
        column = tl.arange(0, SIZE)
        inside = column < head_size
        at = ((row_start + position) * HEADS + head) * head_size + column
        scaled = tl.load(query + at, mask=inside, other=0.0).to(tl.float32) * tl.load(scales + block)
        base = (row.to(tl.int64) * HEADS + head) * length * head_size
        last = length - 1
        if CAUSAL:
            last = position
        highest = -1.0e30
        total = 0.0
        output = tl.zeros((SIZE,), dtype=tl.float32)
        for start in tl.range(0, LENGTH, KEYS, num_stages=3):
            key_position = start + tl.arange(0, KEYS)
            seen = (key_position <= last) & (key_position < LENGTH)
            where = base + block.to(tl.int64) * layer_stride + key_position * head_size
            if COPIES:
                depth = tl.load(filled + row_start + key_position, mask=seen, other=1)
                where = base + (tl.minimum(depth, block + 1) - 1).to(tl.int64) * layer_stride + key_position * head_size
            where = where[:, None] + column[None, :]
            read = seen[:, None] & inside[None, :]
            key = tl.load(keys + where, mask=read, other=0.0).to(tl.float32)
            score = tl.where(seen, tl.sum(key * scaled[None, :], axis=1), -1.0e30)
            higher = tl.maximum(highest, tl.max(score, axis=0))
            share = tl.where(seen, tl.exp(score - higher), 0.0)
            shrunk = tl.exp(highest - higher)
            value = tl.load(values + where, mask=read, other=0.0).to(tl.float32)
            output = output * shrunk + tl.sum(value * share[:, None], axis=0)
            total = total * shrunk + tl.sum(share, axis=0)
            highest = higher
        tl.store(result + at, (output / total).to(result.dtype.element_ty), mask=inside)


def mixed_attention(state: DecodingState, rows: int, images: bool, recomputes: bool, copies: bool) -> None:
    """
    From `query` to `attention_output`. Tokens attend to all patches of their image if `images`, otherwise to the tokens
    of their caption up to themselves. `recomputes`: tokens that skipped the block are computed, too; `copies`: keys and
    values of a token's last block stand for those of the blocks that it skipped.
    """
    keys, values = (state.image_keys, state.image_values) if images else (state.keys, state.values)
    if not state.use_kernels:
        mixed_attention_reference(state, keys, values, images, recomputes, copies)
        return
    _, _, heads, length, head_size = keys.shape
    state.launch(
        attention_kernel,
        (rows * state.max_tokens if recomputes else rows, heads),
        keys=keys,
        values=values,
        result=state.attention_output,
        length=length,
        head_size=head_size,
        layer_stride=keys.stride(0),
        HEADS=heads,
        LENGTH=length,
        SIZE=power_of_two(head_size),
        KEYS=min(power_of_two(length), max(16, ELEMENTS // power_of_two(head_size))),
        CAUSAL=not images,
        COPIES=copies and not images,
        MARKED=recomputes,
    )


def mixed_attention_reference(
    state: DecodingState, keys: Tensor, values: Tensor, images: bool, recomputes: bool, copies: bool
) -> None:
    heads, length, head_size = keys.shape[2:]
    for block, count in enumerate(state.counts[:, int(recomputes)].tolist()):
        places = state.listed[block, :count].long()
        if not count:
            continue
        row, position = places // state.max_tokens, places % state.max_tokens
        past = (keys[block][row], values[block][row])  # (tokens, heads, length, head_size) each
        if copies and not images:
            depth = (state.filled[row].clamp(1, block + 1) - 1).long()  # (tokens, length)
            each = torch.arange(length, device=depth.device)
            past = (
                keys[depth, row[:, None], :, each].transpose(1, 2),
                values[depth, row[:, None], :, each].transpose(1, 2),
            )
        seen = None if images else (torch.arange(length, device=places.device) <= position[:, None])[:, None, None]
        output = functional.scaled_dot_product_attention(
            state.query[places].view(count, heads, 1, head_size),
            past[0],
            past[1],
            attn_mask=seen,
            scale=float(state.scales[block]),
        )
        state.attention_output[places] = output.reshape(count, -1)
