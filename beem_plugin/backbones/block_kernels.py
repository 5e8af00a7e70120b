"""
Two GPU kernels for what takes longest in a block beside its matrix products: attention among few tokens, and the sum of
two tensors normalised. torch's own attention is made for long inputs and, with a bias of positions, for sixteen tokens
costs several times what their products cost; layer by layer, half of a small batch's kernels are those that add, scale,
copy and mask.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

MOST_TOKENS = 128
"""All scores of a head are held at once."""
WARPS = {16: 1, 32: 2, 64: 4, 128: 8}
DTYPES = (torch.float16, torch.bfloat16)

if triton is not None:
    # Numbers that differ from batch to batch, of which no kernel should be made each.
    @triton.jit(do_not_specialize=["tokens", "head_stride", "from_stride"])
    def attention(
        query,
        key,
        value,
        bias,
        real,
        heard,
        tokens,
        scale,
        row_stride,
        out_stride,
        head_stride,
        from_stride,
        HEADS: tl.constexpr,
        SIZE: tl.constexpr,
        BLOCK: tl.constexpr,
        HAS_BIAS: tl.constexpr,
        HAS_PADDING: tl.constexpr,
    ):
        """One head of one sample: scores, softmax and the mean of the values, in float32 between the products."""
        sample = (tl.program_id(0) // HEADS).to(tl.int64)
        head = tl.program_id(0) % HEADS
        place = tl.arange(0, BLOCK)
        column = tl.arange(0, SIZE)
        inside = place < tokens
        where = (sample * tokens + place[:, None]) * row_stride + head * SIZE + column[None, :]
        asked = tl.load(query + where, mask=inside[:, None], other=0.0)
        known = tl.load(key + where, mask=inside[:, None], other=0.0)
        scores = tl.dot(asked, tl.trans(known)) * scale
        if HAS_BIAS:
            pair = head * head_stride + place[:, None] * from_stride + place[None, :]
            scores += tl.load(bias + pair, mask=inside[:, None] & inside[None, :], other=0.0).to(tl.float32)
        counts = inside
        if HAS_PADDING:
            counts = counts & (tl.load(real + sample * tokens + place, mask=inside, other=0) != 0)
        scores = tl.where(counts[None, :], scores, -1e30)
        weight = tl.exp(scores - tl.max(scores, axis=1)[:, None])
        total = tl.sum(weight, axis=1)
        said = tl.load(value + where, mask=inside[:, None], other=0.0)
        result = tl.dot(weight.to(said.dtype), said) / total[:, None]
        target = (sample * tokens + place[:, None]) * out_stride + head * SIZE + column[None, :]
        tl.store(heard + target, result.to(heard.dtype.element_ty), mask=inside[:, None])

    @triton.jit
    def add_norm(first, second, weight, bias, result, size, eps, BLOCK: tl.constexpr):
        """The sum of two rows, normalised, scaled and shifted."""
        row = tl.program_id(0).to(tl.int64) * size
        column = tl.arange(0, BLOCK)
        inside = column < size
        total = tl.load(first + row + column, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(second + row + column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(total, axis=0) / size
        centred = tl.where(inside, total - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / size + eps)
        gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(result + row + column, (centred * scale * gain + shift).to(result.dtype.element_ty), mask=inside)


def can_run(hidden_states: Tensor, num_heads: int) -> bool:
    """Whether the kernels serve hidden states `(batch, tokens, hidden)` of this kind, in so many heads."""
    size = hidden_states.shape[2] // num_heads
    return (
        triton is not None
        and hidden_states.is_cuda
        and hidden_states.dtype in DTYPES
        and hidden_states.shape[1] <= MOST_TOKENS
        and size in (16, 32, 64, 128)
        and hidden_states.shape[2] <= 8192
    )


def block_of(tokens: int) -> int:
    """The power of 2 that so many tokens are filled up to: a kernel each."""
    return max(16, 1 << (tokens - 1).bit_length())


def attend(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, bias: Tensor | None, real: Tensor | None
) -> Tensor:
    """
    # Parameters

    query, key, value : `Tensor`
        `(batch, tokens, hidden)`, the heads side by side; rows may lie apart, all three alike.
    num_heads : `int`
    bias : `Tensor`, optional
        `(1, heads, tokens, tokens)`, added to the scores of every sample.
    real : `Tensor`, optional
        `(batch, tokens)` bool, contiguous: which tokens are listened to; at least one a sample.

    # Returns

    `Tensor`
        `(batch, tokens, hidden)`
    """
    batch, tokens, hidden = query.shape
    size = hidden // num_heads
    block = block_of(tokens)
    heard = torch.empty((batch, tokens, hidden), dtype=query.dtype, device=query.device)
    kernel: Any = attention
    kernel[(batch * num_heads,)](
        query,
        key,
        value,
        query if bias is None else bias,
        query if real is None else real,
        heard,
        tokens,
        size**-0.5,
        query.stride(1),
        hidden,
        0 if bias is None else bias.stride(1),
        0 if bias is None else bias.stride(2),
        HEADS=num_heads,
        SIZE=size,
        BLOCK=block,
        HAS_BIAS=bias is not None,
        HAS_PADDING=real is not None,
        num_warps=WARPS[block],
    )
    return heard


def add_and_normalise(first: Tensor, second: Tensor, norm: Any) -> Tensor:
    """
    # Parameters

    first, second : `Tensor`
        `(batch, tokens, hidden)`, contiguous.
    norm : `torch.nn.LayerNorm`

    # Returns

    `Tensor`
        What `norm` says about their sum.
    """
    result = torch.empty_like(first)
    size = first.shape[-1]
    kernel: Any = add_norm
    kernel[(first.numel() // size,)](
        first, second, norm.weight, norm.bias, result, size, norm.eps, BLOCK=1 << (size - 1).bit_length(), num_warps=4
    )
    return result
