"""A linear layer of every block in one launch, each for the tokens that are in this block."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.decoding.mixed_depths.state import DecodingState
from beem_plugin.decoding.mixed_depths.weights import Linear
from beem_plugin.kernels.launch import jit, tl

# Measured on an H200 with 12 blocks of 384 in float32: programs are limited by memory latency, so each reads large
# parts with prefetching and computes few columns.
TOKENS = 16
"""Tokens that a program multiplies at a time: the minimum of `tl.dot`."""
COLUMNS = 32
"""Outputs of a program."""
PART = 128
"""Inputs that a program reads at a time."""
STAGES = 4
"""Parts that are loaded at once."""
EXACT = "ieee"
"""Precision of float32 products where torch does not allow TF32."""


@jit()
def linear_kernel(
    source,
    listed,
    counts,
    at_exit,
    weight,
    bias,
    slope,
    gain,
    boost,
    result,
    keys,
    values,
    capacity,
    max_tokens,
    outputs,
    head_size,
    layer_stride,
    eps,
    INPUTS: tl.constexpr,
    WHICH: tl.constexpr,
    KIND: tl.constexpr,
    NORMED: tl.constexpr,
    GAINED: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PART: tl.constexpr,
    EVEN: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Some outputs of a block, or of a vocabulary matrix; see `mixed_linear`. Early loads hide latency."""
    block = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_output = column < outputs
    start = tl.program_id(2) * TOKENS
    count = tl.load(counts + 2 * block + WHICH)
    slot = start + tl.arange(0, TOKENS)
    found = tl.load(listed + block * capacity + slot, mask=slot < capacity, other=0)
    matrix_start = block.to(tl.int64) * INPUTS * outputs
    while start < count:
        real = slot < count
        place = tl.where(real, found, 0).to(tl.int64)
        kept = real[:, None] & is_output[None, :]
        if GAINED:  # one matrix after the normalisations of all exits
            norm = tl.load(at_exit + place // max_tokens, mask=real, other=1).to(tl.int32) - 1
            norm_column = norm[:, None] * outputs + column[None, :]
            added = tl.load(bias + norm_column, mask=kept, other=0.0).to(tl.float32)
            tilt = tl.load(slope + norm_column, mask=kept, other=0.0)
            boosted = tl.load(boost + norm)
        else:
            added = tl.load(bias + block * outputs + column, mask=is_output, other=0.0).to(tl.float32)[None, :]
        if KIND == "add":
            where = result + place[:, None] * outputs + column[None, :]
            before = tl.load(where, mask=kept, other=0.0).to(tl.float32)
        total = tl.zeros((TOKENS, COLUMNS), dtype=tl.float32)
        mean = tl.zeros((TOKENS,), dtype=tl.float32)
        squares = tl.zeros((TOKENS,), dtype=tl.float32)  # the sum of squared distances from the mean
        for begin in tl.range(0, INPUTS, PART, num_stages=STAGES):
            part = begin + tl.arange(0, PART)
            inside = (part < INPUTS) | EVEN
            value = tl.load(
                source + place[:, None] * INPUTS + part[None, :], mask=real[:, None] & inside[None, :], other=0.0
            )
            if NORMED:  # the mean and the variance of parts are joined as by Chan et al. (1979)
                exact = value.to(tl.float32)
                size = tl.minimum(INPUTS - begin, PART).to(tl.float32)
                part_mean = tl.sum(exact, axis=1) / size
                distance = tl.where(inside[None, :], exact - part_mean[:, None], 0.0)
                moved = part_mean - mean
                share = size / (begin + size)
                squares += tl.sum(distance * distance, axis=1) + moved * moved * begin * share
                mean += moved * share
            if GAINED:
                factor = tl.load(gain + norm[:, None] * INPUTS + part[None, :], mask=inside[None, :], other=0.0)
                value = (value.to(tl.float32) * factor.to(tl.float32)).to(value.dtype)
                at = weight + matrix_start + column[:, None] * INPUTS + part[None, :]
                matrix = tl.trans(tl.load(at, mask=is_output[:, None] & inside[None, :], other=0.0))
            else:
                at = weight + matrix_start + part[:, None] * outputs + column[None, :]
                matrix = tl.load(at, mask=inside[:, None] & is_output[None, :], other=0.0)
            total = tl.dot(value, matrix, total, input_precision=PRECISION)
        if NORMED:
            scale = 1.0 / tl.sqrt(squares / INPUTS + eps)
            if GAINED:
                total -= mean[:, None] * tilt
                scale *= boosted
            total *= scale[:, None]
        output = (total + added).to(source.dtype.element_ty)
        if KIND == "add":
            tl.store(where, (before + output.to(tl.float32)).to(output.dtype), mask=kept)
        elif KIND == "keys_values":
            width = outputs // 3
            third = column // width
            inner = column - third * width
            tl.store(result + place[:, None] * width + inner[None, :], output, mask=kept & (third == 0)[None, :])
            head = inner // head_size
            row = place // max_tokens
            stored = (row * (width // head_size))[:, None] + head[None, :]
            stored = (stored * max_tokens + (place - row * max_tokens)[:, None]) * head_size
            stored += block.to(tl.int64) * layer_stride + (inner - head * head_size)[None, :]
            tl.store(keys + stored, output, mask=kept & (third == 1)[None, :])
            tl.store(values + stored, output, mask=kept & (third == 2)[None, :])
        else:
            if KIND == "gelu":
                entry = output.to(tl.float32)
                inner_value = 1.5957691216057308 * (entry + 0.044715 * entry * entry * entry)
                output = (entry / (1.0 + tl.exp(-inner_value))).to(output.dtype)
            to = place
            if KIND == "head":
                to = place // max_tokens
            tl.store(result + to[:, None] * outputs + column[None, :], output, mask=kept)
        start += tl.num_programs(2) * TOKENS
        slot = start + tl.arange(0, TOKENS)
        found = tl.load(listed + block * capacity + slot, mask=slot < capacity, other=0)


def mixed_linear(
    state: DecodingState,
    rows: int,
    kind: str,
    source: Tensor,
    linear: Linear,
    result: Tensor,
    all_tokens: bool = False,
) -> None:
    """
    A linear layer for the listed tokens of up to `rows` captions, from `source` `(places, inputs)`, by `kind`:
    `"store"` writes the outputs to `result` `(places, outputs)`, `"add"` adds them, `"gelu"` writes their activation;
    `"keys_values"` writes the first third there and the rest to the state's keys and values; `"head"` computes the
    logits of the listed heads by the state's `vocabulary`, and `result` is `(captions, vocabulary)`. With `all_tokens`
    the tokens that skipped the block are computed, too.
    """
    if not state.use_kernels:
        mixed_linear_reference(state, kind, source, linear, result, all_tokens)
        return
    listed, counts = (state.head_places, state.head_counts) if kind == "head" else (state.listed, state.counts)
    inputs, outputs = source.shape[1], linear.outputs
    gains: dict[str, Any] = dict.fromkeys(linear.GAINS, linear.bias)  # not read
    if linear.gain is not None:
        gains = {name: getattr(linear, name) for name in linear.GAINS}
    state.launch(
        linear_kernel,
        (-(-outputs // COLUMNS), len(linear.weight), -(-rows // TOKENS)),
        source=source,
        listed=listed,
        counts=counts,
        weight=linear.weight,
        bias=linear.bias,
        **gains,
        result=result,
        capacity=listed.shape[1],
        outputs=outputs,
        head_size=state.keys.shape[-1],
        layer_stride=state.keys.stride(0),
        eps=linear.eps,
        INPUTS=inputs,
        WHICH=int(all_tokens),
        KIND=kind,
        NORMED=linear.normed,
        GAINED=linear.gain is not None,
        TOKENS=TOKENS,
        COLUMNS=COLUMNS,
        PART=PART,
        EVEN=inputs % PART == 0,
        STAGES=STAGES,
        PRECISION="tf32" if allows_tf32() else EXACT,
    )


def mixed_linear_reference(
    state: DecodingState, kind: str, source: Tensor, linear: Linear, result: Tensor, all_tokens: bool
) -> None:
    listed, counts = (state.head_places, state.head_counts) if kind == "head" else (state.listed, state.counts)
    for block, count in enumerate(counts[:, int(all_tokens)].tolist()):
        places = listed[block, :count].long()
        if not count:
            continue
        row, position = places // state.max_tokens, places % state.max_tokens
        norm = torch.full_like(row, block) if linear.gain is None else state.at_exit[row] - 1
        output = linear(source[places].float(), block, norm).to(source.dtype)
        if kind == "head":
            result[row] = output
        elif kind == "keys_values":
            heads, _, head_size = state.keys.shape[2:]
            result[places], key, value = output.chunk(3, dim=1)
            state.keys[block][row, :, position] = key.reshape(-1, heads, head_size)
            state.values[block][row, :, position] = value.reshape(-1, heads, head_size)
        elif kind == "add":
            result[places] += output
        else:
            result[places] = functional.gelu(output, approximate="tanh") if kind == "gelu" else output


def allows_tf32() -> bool:
    """Whether torch may round float32 to TF32 before it multiplies."""
    matmul = torch.backends.cuda.matmul
    chosen = getattr(matmul, "fp32_precision", None)  # later releases refuse `allow_tf32` once this is set
    if chosen == "none":
        chosen = getattr(torch.backends, "fp32_precision", chosen)
    return chosen == "tf32" if chosen is not None else bool(matmul.allow_tf32)
