"""
One word of each of some rows attends to the words before it, or to its image, where these lie in their buffers.

In torch's operations the rows' keys and values are copied out of the buffers first. On a GPU a kernel reads them where
they are: the rows are few and their words too, so that launches and copies are what costs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.kernel_launch import launch, power_of_two

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

ENTRIES = 4096
"""Numbers of keys that a program reads at a time."""
LARGEST_HEAD = 256

if triton is not None:

    @triton.jit
    def mixed_values(asked, keys, values, last, size, LENGTH: tl.constexpr, SIZE: tl.constexpr, KEYS: tl.constexpr):
        """What a scaled query of `size` numbers attends to up to key `last`; the softmax is taken as the keys come."""
        column = tl.arange(0, SIZE)
        inside = column < size
        highest = -1.0e30
        total = 0.0
        mixed = tl.zeros((SIZE,), dtype=tl.float32)
        for start in tl.range(0, LENGTH, KEYS, num_stages=3):
            place = start + tl.arange(0, KEYS)
            seen = (place <= last) & (place < LENGTH)
            where = place[:, None] * size + column[None, :]
            read = seen[:, None] & inside[None, :]
            key = tl.load(keys + where, mask=read, other=0.0).to(tl.float32)
            score = tl.where(seen, tl.sum(key * asked[None, :], axis=1), -1.0e30)
            higher = tl.maximum(highest, tl.max(score, axis=0))
            share = tl.where(seen, tl.exp(score - higher), 0.0)
            shrunk = tl.exp(highest - higher)
            value = tl.load(values + where, mask=read, other=0.0).to(tl.float32)
            mixed = mixed * shrunk + tl.sum(value * share[:, None], axis=0)
            total = total * shrunk + tl.sum(share, axis=0)
            highest = higher
        return mixed / total

    @triton.jit
    def attend_kernel(
        query,
        keys,
        values,
        rows,
        positions,
        attended,
        query_stride,
        room,
        size,
        scale,
        HEADS: tl.constexpr,
        LENGTH: tl.constexpr,
        SIZE: tl.constexpr,
        KEYS: tl.constexpr,
        HAS_POSITIONS: tl.constexpr,
    ):
        """
        A row and a head. Without positions all LENGTH keys are looked at.
        """
        slot = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        column = tl.arange(0, SIZE)
        inside = column < size
        row = tl.load(rows + slot)
        last = LENGTH - 1
        if HAS_POSITIONS:
            last = tl.load(positions + slot).to(tl.int32)
        asked = tl.load(query + slot * query_stride + head * size + column, mask=inside, other=0.0).to(tl.float32)
        asked = asked * scale
        base = (row * HEADS + head) * room * size
        mixed = mixed_values(asked, keys + base, values + base, last, size, LENGTH, SIZE, KEYS)
        result = mixed.to(attended.dtype.element_ty)
        tl.store(attended + slot * HEADS * size + head * size + column, result, mask=inside)

    @triton.jit
    def write_kernel(
        key, value, keys, values, rows, positions, stride, room, size, HEADS: tl.constexpr, BLOCK: tl.constexpr
    ):
        """Puts a word's key and value of all heads where they belong."""
        slot = tl.program_id(0).to(tl.int64)
        row = tl.load(rows + slot)
        position = tl.load(positions + slot)
        column = tl.arange(0, BLOCK)
        inside = column < HEADS * size
        place = ((row * HEADS + column // size) * room + position) * size + column % size
        tl.store(keys + place, tl.load(key + slot * stride + column, mask=inside), mask=inside)
        tl.store(values + place, tl.load(value + slot * stride + column, mask=inside), mask=inside)


def serves(tensor: Tensor) -> bool:
    """Whether kernels can be used on what lies where `tensor` does."""
    known = (torch.float32, torch.float16, torch.bfloat16)
    return triton is not None and tensor.is_cuda and tensor.dtype in known and tensor.shape[-1] <= LARGEST_HEAD


def keys_at_a_time(length: int, size: int) -> int:
    """Of `length` keys of `size` numbers each: several times so many are under way at once and need room."""
    return min(power_of_two(length), max(16, ENTRIES // power_of_two(size)))


def attend(
    query: Tensor, keys: Tensor, values: Tensor, rows: Tensor, positions: Tensor | None, scale: float, use_kernel: bool
) -> Tensor:
    """
    # Parameters

    query : `Tensor`
        `(n, heads * size)`, its last dimension contiguous.
    keys, values : `Tensor`
        `(rows, heads, room, size)`, contiguous.
    rows : `Tensor`
        `(n,)` int64: whose keys each query looks at.
    positions : `Tensor`, optional
        `(n,)` int64: up to which key, this one included; without, at all.
    scale : `float`
    use_kernel : `bool`

    # Returns

    `Tensor`
        `(n, heads * size)`
    """
    _, heads, room, size = keys.shape
    if use_kernel:
        attended = query.new_empty(len(query), heads * size)
        launch(
            attend_kernel,
            (len(query), heads),
            query,
            keys,
            values,
            rows,
            rows if positions is None else positions,
            attended,
            query.stride(0),
            room,
            size,
            scale,
            HEADS=heads,
            LENGTH=room,
            SIZE=power_of_two(size),
            KEYS=keys_at_a_time(room, size),
            HAS_POSITIONS=positions is not None,
            num_warps=4 if room <= 64 else 8,
        )
        return attended
    mask = None
    if positions is not None:
        mask = (torch.arange(room, device=rows.device) <= positions[:, None])[:, None, None]
    asked = query.reshape(len(query), heads, 1, size)
    found = functional.scaled_dot_product_attention(
        asked, keys.index_select(0, rows), values.index_select(0, rows), attn_mask=mask, scale=scale
    )
    return found.reshape(len(query), heads * size)


def write(
    key: Tensor, value: Tensor, keys: Tensor, values: Tensor, rows: Tensor, positions: Tensor, use_kernel: bool
) -> None:
    """
    # Parameters

    key, value : `Tensor`
        `(n, heads * size)`, of the same strides, the last dimension contiguous.
    keys, values : `Tensor`
        `(rows, heads, room, size)`, contiguous: get them at `positions` of `rows`, both `(n,)` int64.
    use_kernel : `bool`
    """
    _, heads, room, size = keys.shape
    if use_kernel:
        launch(
            write_kernel,
            (len(key),),
            key,
            value,
            keys,
            values,
            rows,
            positions,
            key.stride(0),
            room,
            size,
            HEADS=heads,
            BLOCK=power_of_two(heads * size),
        )
        return
    keys[rows, :, positions] = key.reshape(len(key), heads, size)
    values[rows, :, positions] = value.reshape(len(value), heads, size)
