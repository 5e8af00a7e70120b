"""Attention of tokens that are in different blocks, and copies of the keys and values of skipped blocks."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.decoding.mixed_depths.state import DecodingState
from beem_plugin.kernels.launch import launch, power_of_two

try:
    import triton
    import triton.language as tl
except ImportError:  # not every platform has Triton
    triton = None

WARPS = 4
ELEMENTS = 4096
"""Elements of keys that a program reads at a time."""

if triton is not None:

    @triton.jit
    def attention_kernel(
        query,
        keys,
        values,
        layers,
        positions,
        recomputed,
        scales,
        result,
        max_tokens,
        length,
        size,
        layer_stride,
        HEADS: tl.constexpr,
        LENGTH: tl.constexpr,
        SIZE: tl.constexpr,
        KEYS: tl.constexpr,
        CAUSAL: tl.constexpr,
        MARKED: tl.constexpr,
    ):
        """A head of a caption's current token, or, if MARKED, of any place. The softmax is computed online."""
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
        place = row.to(tl.int64) * max_tokens + position
        if active:
            column = tl.arange(0, SIZE)
            inside = column < size
            at = place * HEADS * size + head * size + column
            scaled = tl.load(query + at, mask=inside, other=0.0).to(tl.float32) * tl.load(scales + block)
            base = block.to(tl.int64) * layer_stride + (row.to(tl.int64) * HEADS + head) * length * size
            last = length - 1
            if CAUSAL:
                last = position
            highest = -1.0e30
            total = 0.0
            output = tl.zeros((SIZE,), dtype=tl.float32)
            for start in tl.range(0, LENGTH, KEYS, num_stages=3):
                key_position = start + tl.arange(0, KEYS)
                seen = (key_position <= last) & (key_position < LENGTH)
                where = base + key_position[:, None] * size + column[None, :]
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

    @triton.jit
    def copy_kernel(
        listed, counts, keys, values, capacity, max_tokens, size, layer_stride, HEADS: tl.constexpr, BLOCK: tl.constexpr
    ):
        """Copies the keys and values of tokens that skipped a block from the block before."""
        block = tl.program_id(0)
        count = tl.load(counts + 2 * block)
        total = tl.load(counts + 2 * block + 1)
        column = tl.arange(0, BLOCK)
        inside = column < HEADS * size
        head = column // size
        slot = count + tl.program_id(1)
        while slot < total:
            place = tl.load(listed + block * capacity + slot).to(tl.int64)
            row = place // max_tokens
            at = block.to(tl.int64) * layer_stride
            at += ((row * HEADS + head) * max_tokens + place - row * max_tokens) * size + column - head * size
            tl.store(keys + at, tl.load(keys + at - layer_stride, mask=inside), mask=inside)
            tl.store(values + at, tl.load(values + at - layer_stride, mask=inside), mask=inside)
            slot += tl.num_programs(1)


def mixed_attention(
    state: DecodingState, rows: int, query: Tensor, result: Tensor, images: bool, recomputes: bool
) -> None:
    """
    # Parameters

    state : `DecodingState`
    rows : `int`
    query, result : `Tensor`
        `(places, heads * size)`
    images : `bool`
        Whether tokens attend to all patches of their image, or to the tokens of their caption up to themselves.
    recomputes : `bool`
        Whether tokens that skipped the block are computed, too.
    """
    if not state.use_kernels:
        mixed_attention_reference(state, rows, query, result, images, recomputes)
        return
    keys, values = (state.image_keys, state.image_values) if images else (state.keys, state.values)
    _, _, heads, length, size = keys.shape
    launch(
        attention_kernel,
        (rows * state.max_tokens if recomputes else rows, heads),
        query,
        keys,
        values,
        state.layers,
        state.positions,
        state.recomputed,
        state.weights.scales,
        result,
        state.max_tokens,
        length,
        size,
        keys.stride(0),
        HEADS=heads,
        LENGTH=length,
        SIZE=power_of_two(size),
        KEYS=min(power_of_two(length), max(16, ELEMENTS // power_of_two(size))),
        CAUSAL=not images,
        MARKED=recomputes,
        num_warps=WARPS,
    )


def mixed_attention_reference(
    state: DecodingState, rows: int, query: Tensor, result: Tensor, images: bool, recomputes: bool
) -> None:
    keys, values = (state.image_keys, state.image_values) if images else (state.keys, state.values)
    heads, length, size = keys.shape[2:]
    for block, count in enumerate(state.counts[:, int(recomputes)].tolist()):
        places = state.listed[block, :count].long()
        if not count:
            continue
        row, position = places // state.max_tokens, places % state.max_tokens
        seen = None if images else (torch.arange(length, device=places.device) <= position[:, None])[:, None, None]
        output = functional.scaled_dot_product_attention(
            query[places].view(count, heads, 1, size),
            keys[block][row],
            values[block][row],
            attn_mask=seen,
            scale=float(state.weights.scales[block]),
        )
        result[places] = output.reshape(count, heads * size)


def copy_skipped(state: DecodingState, rows: int) -> None:
    """
    Copies keys and values of the previous block for the listed tokens that skipped their block.

    # Parameters

    state : `DecodingState`
    rows : `int`
    """
    if not state.use_kernels:
        copy_skipped_reference(state, rows)
        return
    _, _, heads, max_tokens, size = state.keys.shape
    launch(
        copy_kernel,
        (state.num_layers, rows),
        state.listed,
        state.counts,
        state.keys,
        state.values,
        state.listed.shape[1],
        max_tokens,
        size,
        state.keys.stride(0),
        HEADS=heads,
        BLOCK=power_of_two(heads * size),
    )


def copy_skipped_reference(state: DecodingState, rows: int) -> None:
    for block, (count, total) in enumerate(state.counts.tolist()):
        places = state.listed[block, count:total].long()
        row, position = places // state.max_tokens, places % state.max_tokens
        for buffer in (state.keys, state.values):
            buffer[block][row, :, position] = buffer[block - 1][row, :, position]
