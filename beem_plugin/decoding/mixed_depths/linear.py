"""A linear layer of every block in one launch, each for the tokens that are in this block."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.decoding.mixed_depths.state import DecodingState
from beem_plugin.decoding.mixed_depths.weights import Linear, Vocabulary
from beem_plugin.kernels.launch import launch

try:
    import triton
    import triton.language as tl
except ImportError:  # not every platform has Triton
    triton = None

STORE, ADD, GELU, KEYS_VALUES, HEAD = range(5)
"""Kinds of output."""
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
WARPS = 4
EXACT = "ieee"
"""Precision of float32 products where torch does not allow TF32."""

if triton is not None:
    ADD_KIND, GELU_KIND, KEYS_VALUES_KIND = (tl.constexpr(kind) for kind in (ADD, GELU, KEYS_VALUES))
    HEAD_KIND = tl.constexpr(HEAD)

    @triton.jit
    def linear_kernel(
        source,
        listed,
        counts,
        head_exits,
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
        norm = slot * 0 + block
        if KIND == HEAD_KIND:
            norm = tl.load(head_exits + block * capacity + slot, mask=slot < capacity, other=1) - 1
        while start < count:
            real = slot < count
            place = tl.where(real, found, 0).to(tl.int64)
            kept = real[:, None] & is_output[None, :]
            if KIND == HEAD_KIND:
                norm = tl.where(real, norm, 0)
                norm_column = norm[:, None] * outputs + column[None, :]
                added = tl.load(bias + norm_column, mask=kept, other=0.0).to(tl.float32)
                tilt = tl.load(slope + norm_column, mask=kept, other=0.0)
                boosted = tl.load(boost + norm)
            else:
                added = tl.load(bias + block * outputs + column, mask=is_output, other=0.0).to(tl.float32)[None, :]
            if KIND == ADD_KIND:
                where = result + place[:, None] * outputs + column[None, :]
                before = tl.load(where, mask=kept, other=0.0).to(tl.float32)
            total = tl.zeros((TOKENS, COLUMNS), dtype=tl.float32)
            mean = tl.zeros((TOKENS,), dtype=tl.float32)
            squares = tl.zeros((TOKENS,), dtype=tl.float32)  # the sum of squared distances from the mean
            matrix_start = block.to(tl.int64) * INPUTS * outputs
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
                if KIND == HEAD_KIND:
                    factor = tl.load(gain + norm[:, None] * INPUTS + part[None, :], mask=inside[None, :], other=0.0)
                    value = (value.to(tl.float32) * factor.to(tl.float32)).to(value.dtype)
                    both = is_output[:, None] & inside[None, :]
                    at = weight + matrix_start + column[:, None] * INPUTS + part[None, :]
                    matrix = tl.trans(tl.load(at, mask=both, other=0.0))
                else:
                    both = inside[:, None] & is_output[None, :]
                    at = weight + matrix_start + part[:, None] * outputs + column[None, :]
                    matrix = tl.load(at, mask=both, other=0.0)
                total = tl.dot(value, matrix, total, input_precision=PRECISION)
            if NORMED:
                scale = 1.0 / tl.sqrt(squares / INPUTS + eps)
                if KIND == HEAD_KIND:
                    total -= mean[:, None] * tilt
                    scale *= boosted
                total *= scale[:, None]
            total += added
            output = total.to(source.dtype.element_ty)
            if KIND == ADD_KIND:
                tl.store(where, (before + output.to(tl.float32)).to(output.dtype), mask=kept)
            elif KIND == GELU_KIND:
                entry = output.to(tl.float32)
                inner = 1.5957691216057308 * (entry + 0.044715 * entry * entry * entry)
                entry = entry / (1.0 + tl.exp(-inner))
                tl.store(result + place[:, None] * outputs + column[None, :], entry.to(output.dtype), mask=kept)
            elif KIND == KEYS_VALUES_KIND:
                size = outputs // 3
                third = column // size
                inner_column = column - third * size
                is_query = kept & (third == 0)[None, :]
                tl.store(result + place[:, None] * size + inner_column[None, :], output, mask=is_query)
                head = inner_column // head_size
                heads = size // head_size
                row = place // max_tokens
                position = place - row * max_tokens
                stored = block.to(tl.int64) * layer_stride
                stored += ((row[:, None] * heads + head[None, :]) * max_tokens + position[:, None]) * head_size
                stored += (inner_column - head * head_size)[None, :]
                tl.store(keys + stored, output, mask=kept & (third == 1)[None, :])
                tl.store(values + stored, output, mask=kept & (third == 2)[None, :])
            elif KIND == HEAD_KIND:
                tl.store(result + (place // max_tokens)[:, None] * outputs + column[None, :], output, mask=kept)
            else:
                tl.store(result + place[:, None] * outputs + column[None, :], output, mask=kept)
            start += tl.num_programs(2) * TOKENS
            slot = start + tl.arange(0, TOKENS)
            found = tl.load(listed + block * capacity + slot, mask=slot < capacity, other=0)
            if KIND == HEAD_KIND:
                norm = tl.load(head_exits + block * capacity + slot, mask=slot < capacity, other=1) - 1


def mixed_linear(
    state: DecodingState,
    rows: int,
    kind: int,
    source: Tensor,
    linear: Linear,
    result: Tensor,
    all_tokens: bool = False,
) -> None:
    """
    # Parameters

    state : `DecodingState`
        With the lists of tokens.
    rows : `int`
        Maximum number of captions, from the first on.
    kind : `int`
        `STORE` writes the output of each token's layer to `result` `(places, outputs)`, `ADD` adds it, `GELU` writes
        its activation. `KEYS_VALUES` writes the first third there and the rest to the state's keys and values.
        `HEAD` computes the logits of the listed heads; `result` is `(captions, vocabulary)`.
    source : `Tensor`
        `(places, inputs)`
    linear : `Linear`
        A `Vocabulary` for `HEAD`.
    result : `Tensor`
    all_tokens : `bool`, optional (default = `False`)
        Whether the tokens that skipped the block are computed, too.
    """
    if not state.use_kernels:
        mixed_linear_reference(state, rows, kind, source, linear, result, all_tokens)
        return
    is_head, inputs, outputs = isinstance(linear, Vocabulary), source.shape[1], linear.outputs
    listed = state.head_places if is_head else state.listed
    slope, gain, boost = (
        (linear.slope, linear.gain, linear.boost) if isinstance(linear, Vocabulary) else [linear.bias] * 3
    )
    launch(
        linear_kernel,
        (-(-outputs // COLUMNS), len(linear.weight), -(-rows // TOKENS)),
        source,
        listed,
        state.head_counts if is_head else state.counts,
        state.head_exits,
        linear.weight,
        linear.bias,
        slope,
        gain,
        boost,
        result,
        state.keys,
        state.values,
        listed.shape[1],
        state.max_tokens,
        outputs,
        state.keys.shape[-1],
        state.keys.stride(0),
        linear.eps,
        INPUTS=inputs,
        WHICH=int(all_tokens),
        KIND=kind,
        NORMED=linear.normed,
        TOKENS=TOKENS,
        COLUMNS=COLUMNS,
        PART=PART,
        EVEN=inputs % PART == 0,
        STAGES=STAGES,
        PRECISION="tf32" if allows_tf32() else EXACT,
        num_warps=WARPS,
    )


def mixed_linear_reference(
    state: DecodingState,
    rows: int,
    kind: int,
    source: Tensor,
    linear: Linear,
    result: Tensor,
    all_tokens: bool = False,
) -> None:
    is_head = isinstance(linear, Vocabulary)
    counts, listed = (state.head_counts, state.head_places) if is_head else (state.counts, state.listed)
    for block, count in enumerate(counts[:, int(all_tokens)].tolist()):
        places = listed[block, :count].long()
        if not count:
            continue
        value = source[places].float()
        mean, std = value.mean(1, keepdim=True), (value.var(1, keepdim=True, correction=0) + linear.eps).sqrt()
        if isinstance(linear, Vocabulary):
            exits = state.head_exits[block, :count].long() - 1
            total = (value * linear.gain[exits].float()) @ linear.weight[block].float().t() - mean * linear.slope[exits]
            output = total * (linear.boost[exits].unsqueeze(1) / std) + linear.bias[exits]
        else:
            output = value @ linear.weight[block].float() / (std if linear.normed else 1) + linear.bias[block]
        output = output.to(source.dtype)
        row, position = places // state.max_tokens, places % state.max_tokens
        if kind == HEAD:
            result[row] = output
        elif kind == KEYS_VALUES:
            heads, size = state.keys.shape[2], state.keys.shape[4]
            query, key, value = output.chunk(3, dim=1)
            result[places] = query
            state.keys[block][row, :, position] = key.reshape(-1, heads, size)
            state.values[block][row, :, position] = value.reshape(-1, heads, size)
        elif kind == ADD:
            result[places] += output
        else:
            result[places] = functional.gelu(output, approximate="tanh") if kind == GELU else output


def allows_tf32() -> bool:
    """Whether torch may round float32 to TF32 before it multiplies."""
    matmul = torch.backends.cuda.matmul
    chosen = getattr(matmul, "fp32_precision", None)  # later releases refuse `allow_tf32` once this is set
    if chosen == "none":
        chosen = getattr(torch.backends, "fp32_precision", chosen)
    return chosen == "tf32" if chosen is not None else bool(matmul.allow_tf32)
