"""A linear layer of every block at once, each for the words that are in this block."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.common.kernel_launch import launch
from beem_plugin.decoding.mixed_state import Linear, MixedState

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

STORE, ADD, GELU, KEYS_VALUES, HEAD = range(5)
# As measured on an H200 with 12 blocks of 384 in float32: a program waits more than it multiplies, so that it should
# read much at a time, some of it ahead, and leave columns to other programs.
WORDS = 16
"""That a program multiplies at a time, the fewest that Triton multiplies."""
COLUMNS = 32
"""Outputs of a program."""
PART = 128
"""Inputs that a program reads at a time."""
STAGES = 4
"""Parts that are under way at once."""
WARPS = 4
EXACT = "ieee"
"""How float32 is multiplied where torch, too, is not to round it to fewer digits."""

if triton is not None:
    ADD_KIND, GELU_KIND, KEYS_VALUES_KIND = (tl.constexpr(kind) for kind in (ADD, GELU, KEYS_VALUES))
    HEAD_KIND = tl.constexpr(HEAD)

    @triton.jit
    def linear_kernel(
        source,
        listed,
        counts,
        heads,
        weight,
        bias,
        slope,
        gain,
        boost,
        result,
        keys,
        values,
        capacity,
        room,
        outputs,
        head_size,
        layer_stride,
        eps,
        INPUTS: tl.constexpr,
        WHICH: tl.constexpr,
        KIND: tl.constexpr,
        NORMED: tl.constexpr,
        WORDS: tl.constexpr,
        COLUMNS: tl.constexpr,
        PART: tl.constexpr,
        EVEN: tl.constexpr,
        STAGES: tl.constexpr,
        PRECISION: tl.constexpr,
    ):
        """
        Some outputs of a block, or, for heads, of the vocabulary. KIND says what is done with what comes out: see
        `mixed_linear`. Whatever can be is read before it is needed: the time goes into waiting.
        """
        block = tl.program_id(1)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        wanted = column < outputs
        start = tl.program_id(2) * WORDS
        count = tl.load(counts + 2 * block + WHICH)
        slot = start + tl.arange(0, WORDS)
        found = tl.load(listed + block * capacity + slot, mask=slot < capacity, other=0)
        norm = slot * 0 + block
        if KIND == HEAD_KIND:
            norm = tl.load(heads + slot, mask=slot < capacity // room, other=1) - 1
        while start < count:
            real = slot < count
            place = tl.where(real, found, 0).to(tl.int64)
            kept = real[:, None] & wanted[None, :]
            if KIND == HEAD_KIND:
                norm = tl.where(real, norm, 0)
                of_norm = norm[:, None] * outputs + column[None, :]
                added = tl.load(bias + of_norm, mask=kept, other=0.0).to(tl.float32)
                tilt = tl.load(slope + of_norm, mask=kept, other=0.0)
                boosted = tl.load(boost + norm)
            else:
                added = tl.load(bias + block * outputs + column, mask=wanted, other=0.0).to(tl.float32)[None, :]
            if KIND == ADD_KIND:
                where = result + place[:, None] * outputs + column[None, :]
                before = tl.load(where, mask=kept, other=0.0).to(tl.float32)
            total = tl.zeros((WORDS, COLUMNS), dtype=tl.float32)
            mean = tl.zeros((WORDS,), dtype=tl.float32)
            apart = tl.zeros((WORDS,), dtype=tl.float32)  # the sum of squared distances from the mean
            for begin in tl.range(0, INPUTS, PART, num_stages=STAGES):
                part = begin + tl.arange(0, PART)
                there = (part < INPUTS) | EVEN
                value = tl.load(
                    source + place[:, None] * INPUTS + part[None, :], mask=real[:, None] & there[None, :], other=0.0
                )
                if NORMED:
                    exact = value.to(tl.float32)
                    size = tl.minimum(INPUTS - begin, PART).to(tl.float32)
                    mean_here = tl.sum(exact, axis=1) / size
                    distance = tl.where(there[None, :], exact - mean_here[:, None], 0.0)
                    moved = mean_here - mean
                    share = size / (begin + size)
                    apart += tl.sum(distance * distance, axis=1) + moved * moved * begin * share
                    mean += moved * share
                if KIND == HEAD_KIND:
                    factor = tl.load(gain + norm[:, None] * INPUTS + part[None, :], mask=there[None, :], other=0.0)
                    value = (value.to(tl.float32) * factor.to(tl.float32)).to(value.dtype)
                    both = wanted[:, None] & there[None, :]
                    lines = tl.load(weight + column[:, None] * INPUTS + part[None, :], mask=both, other=0.0)
                    matrix = tl.trans(lines)
                else:
                    both = there[:, None] & wanted[None, :]
                    at = block.to(tl.int64) * INPUTS * outputs
                    matrix = tl.load(weight + at + part[:, None] * outputs + column[None, :], mask=both, other=0.0)
                total = tl.dot(value, matrix, total, input_precision=PRECISION)
            if NORMED:
                scale = 1.0 / tl.sqrt(apart / INPUTS + eps)
                if KIND == HEAD_KIND:
                    total -= mean[:, None] * tilt
                    scale *= boosted
                total *= scale[:, None]
            total += added
            said = total.to(source.dtype.element_ty)
            if KIND == ADD_KIND:
                tl.store(where, (before + said.to(tl.float32)).to(said.dtype), mask=kept)
            elif KIND == GELU_KIND:
                entry = said.to(tl.float32)
                inner = 1.5957691216057308 * (entry + 0.044715 * entry * entry * entry)
                entry = entry / (1.0 + tl.exp(-inner))
                tl.store(result + place[:, None] * outputs + column[None, :], entry.to(said.dtype), mask=kept)
            elif KIND == KEYS_VALUES_KIND:
                size = outputs // 3
                which = column // size
                inner_column = column - which * size
                asks = kept & (which == 0)[None, :]
                tl.store(result + place[:, None] * size + inner_column[None, :], said, mask=asks)
                head = inner_column // head_size
                heads_of_block = size // head_size
                row = place // room
                position = place - row * room
                stored = block.to(tl.int64) * layer_stride
                stored += ((row[:, None] * heads_of_block + head[None, :]) * room + position[:, None]) * head_size
                stored += (inner_column - head * head_size)[None, :]
                tl.store(keys + stored, said, mask=kept & (which == 1)[None, :])
                tl.store(values + stored, said, mask=kept & (which == 2)[None, :])
            elif KIND == HEAD_KIND:
                tl.store(result + (place // room)[:, None] * outputs + column[None, :], said, mask=kept)
            else:
                tl.store(result + place[:, None] * outputs + column[None, :], said, mask=kept)
            start += tl.num_programs(2) * WORDS
            slot = start + tl.arange(0, WORDS)
            found = tl.load(listed + block * capacity + slot, mask=slot < capacity, other=0)
            if KIND == HEAD_KIND:
                norm = tl.load(heads + slot, mask=slot < capacity // room, other=1) - 1


def mixed_linear(
    state: MixedState,
    rows: int,
    kind: int,
    source: Tensor,
    linear: Linear,
    result: Tensor,
    all_words: bool = False,
    stored: tuple[Tensor, Tensor] | None = None,
) -> None:
    """
    # Parameters

    state : `MixedState`
        With the lists of the words.
    rows : `int`
        Captions at most, from the first on.
    kind : `int`
        `STORE` puts what comes out of each word's layer into `result` `(words, outputs)`, `ADD` adds it there, `GELU`
        puts its activation there. `KEYS_VALUES` puts the first third there and the rest into `stored`, all keys and
        all values of a `RowStore`. `HEAD` works on the words that a head is asked about; `result` is
        `(captions, outputs)`.
    source : `Tensor`
        `(words, inputs)`
    linear : `Linear`
    result : `Tensor`
    all_words : `bool`, optional (default = `False`)
        Words that skipped the block, too.
    stored : `tuple[Tensor, Tensor]`, optional
    """
    inputs, outputs = source.shape[1], linear.bias.shape[1]
    keys, values = stored if stored is not None else (result, result)
    head = state.num_layers  # the list of the words that heads are asked about comes after those of the blocks
    launch(
        linear_kernel,
        (-(-outputs // COLUMNS), 1 if kind == HEAD else state.num_layers, -(-rows // WORDS)),
        source,
        state.listed[head:] if kind == HEAD else state.listed,
        state.counts[head:] if kind == HEAD else state.counts,
        state.heads,
        linear.weight,
        linear.bias,
        linear.bias if linear.slope is None else linear.slope,
        linear.bias if linear.gain is None else linear.gain,
        linear.bias if linear.boost is None else linear.boost,
        result,
        keys,
        values,
        state.listed.shape[1],
        state.room,
        outputs,
        keys.shape[-1],
        keys.stride(0),
        linear.eps,
        INPUTS=inputs,
        WHICH=int(all_words),
        KIND=kind,
        NORMED=linear.normed,
        WORDS=WORDS,
        COLUMNS=COLUMNS,
        PART=PART,
        EVEN=inputs % PART == 0,
        STAGES=STAGES,
        PRECISION="tf32" if rounds_float32() else EXACT,
        num_warps=WARPS,
    )


def rounds_float32() -> bool:
    """Whether torch may round float32 to TF32 before it multiplies."""
    matmul = torch.backends.cuda.matmul
    chosen = getattr(matmul, "fp32_precision", None)  # later releases refuse the older question once this is set
    if chosen == "none":
        chosen = getattr(torch.backends, "fp32_precision", chosen)
    return chosen == "tf32" if chosen is not None else bool(matmul.allow_tf32)
