"""Self-attention over short sequences, padded or packed, with an optional position bias."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.kernels.launch import jit, launch, power_of_two, tl
from beem_plugin.kernels.packed import Packed

MAX_TOKENS = 128
"""Longest sample: one program holds all scores of a head."""
HEAD_SIZES = (16, 32, 64, 128)
NUM_WARPS = {16: 1, 32: 2, 64: 4, 128: 8}


@jit(do_not_specialize=["first", "tokens", "bias_head_stride", "bias_row_stride", "bias_sample_stride"])
def attention_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    bias_ptr,
    mask_ptr,
    cu_seqlens_ptr,
    output_ptr,
    first,
    tokens,
    scale,
    row_stride,
    bias_sample_stride,
    bias_head_stride,
    bias_row_stride,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    PACKED: tl.constexpr,
):
    """One program: one head of one sample. Scores and softmax in float32."""
    sample = first + (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    if PACKED:
        start = tl.load(cu_seqlens_ptr + sample)
        tokens = tl.load(cu_seqlens_ptr + sample + 1) - start
    else:
        start = sample * tokens
    row = tl.arange(0, BLOCK)
    column = tl.arange(0, HEAD_SIZE)
    inside = row < tokens
    offset = (start + row[:, None]) * row_stride + head * HEAD_SIZE + column[None, :]
    query = tl.load(query_ptr + offset, mask=inside[:, None], other=0.0)
    key = tl.load(key_ptr + offset, mask=inside[:, None], other=0.0)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale  # (queries, keys)
    if HAS_BIAS:
        bias_offset = sample * bias_sample_stride + head * bias_head_stride
        bias_offset += row[:, None] * bias_row_stride + row[None, :]
        scores += tl.load(bias_ptr + bias_offset, mask=inside[:, None] & inside[None, :], other=0.0).to(tl.float32)
    allowed = inside
    if HAS_MASK:
        allowed = allowed & (tl.load(mask_ptr + start + row, mask=inside, other=0) != 0)
    # Finite, so that a sample of padding alone gives an average and not NaN.
    scores = tl.where(allowed[None, :], scores, -1e30)
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    total = tl.sum(weights, axis=1)
    value = tl.load(value_ptr + offset, mask=inside[:, None], other=0.0)
    output = tl.dot(weights.to(value.dtype), value, input_precision="ieee") / total[:, None]
    output_offset = ((start + row[:, None]) * HEADS + head) * HEAD_SIZE + column[None, :]
    tl.store(output_ptr + output_offset, output.to(output_ptr.dtype.element_ty), mask=inside[:, None])


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    bias: Tensor | None = None,
    attention_mask: Tensor | None = None,
    packed: Packed | None = None,
) -> Tensor:
    """
    Scaled dot-product attention of every head (Vaswani et al. 2017, Eq. 1), with a bias added to the scores (MPNet);
    returns `(batch, tokens, hidden)`, contiguous. torch's own attention is made for long sequences: for tens of tokens,
    with a bias or packed, it takes longer than the matrix products around it.

    `query`, `key` and `value` are `(batch, tokens, hidden)` with the heads side by side, of a size in `HEAD_SIZES`;
    they may be slices of one joined projection: all have the same strides, and the last dimension is contiguous. `bias`
    is `(1 or batch, heads, at least tokens, at least tokens)`, contiguous in the last dimension; `attention_mask`
    `(batch, tokens)` bool, contiguous, the keys that are attended to. With `packed`, the layout of packed samples, the
    batch size is 1 and the mask is not used. No sample is longer than `MAX_TOKENS`.
    """
    batch, tokens, hidden = query.shape
    output = torch.empty((batch, tokens, hidden), dtype=query.dtype, device=query.device)
    strides = (0, 0, 0) if bias is None else (bias.stride(0) if len(bias) > 1 else 0, *bias.stride()[1:3])
    groups = [(0, batch, block_size(tokens))] if packed is None else length_groups(packed.lengths)
    for first, last, block in groups:
        launch(
            attention_kernel,
            ((last - first) * num_heads,),
            query,
            key,
            value,
            query if bias is None else bias,
            query if attention_mask is None else attention_mask,
            query if packed is None else packed.cu_seqlens,
            output,
            first,
            tokens,
            (hidden // num_heads) ** -0.5,
            query.stride(1),
            *strides,
            HEADS=num_heads,
            HEAD_SIZE=hidden // num_heads,
            BLOCK=block,
            HAS_BIAS=bias is not None,
            HAS_MASK=attention_mask is not None and packed is None,
            PACKED=packed is not None,
            num_warps=NUM_WARPS[block],
        )
    return output


def attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    bias: Tensor | None = None,
    attention_mask: Tensor | None = None,
    packed: Packed | None = None,
) -> Tensor:
    """`attention` in torch operations."""
    if packed is not None:
        (query, attention_mask), (key, _), (value, _) = map(packed.padded, (query, key, value))
    batch, tokens, hidden = query.shape
    query, key, value = (part.reshape(batch, tokens, num_heads, -1).transpose(1, 2) for part in (query, key, value))
    mask = None if bias is None else bias[:, :, :tokens, :tokens]
    if attention_mask is not None:
        mask = query.new_zeros(1, 1, 1, 1) if mask is None else mask
        mask = mask.masked_fill(~attention_mask[:, None, None, :], torch.finfo(query.dtype).min)
    output = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    output = output.transpose(1, 2).reshape(batch, tokens, hidden)  # from (batch, heads, tokens, head size)
    return output if packed is None or attention_mask is None else output[attention_mask][None]


def block_size(tokens: int) -> int:
    """The number of rows that a program computes for a sample of `tokens` tokens; one compiled kernel each."""
    return max(16, power_of_two(tokens))


def length_groups(lengths: np.ndarray) -> list[tuple[int, int, int]]:
    """The first sample, the sample after the last, and the block size of each run of samples; `lengths` ascend."""
    groups = []
    first = 0
    while first < len(lengths):
        block = block_size(int(lengths[first]))
        last = int(np.searchsorted(lengths, block, side="right"))
        groups.append((first, last, block))
        first = last
    return groups
