"""The mean over the tokens of each sample, padded or packed."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.kernels.launch import jit, launch, power_of_two, tl
from beem_plugin.kernels.packed import Packed

ROWS = 8
"""Tokens that a program loads at a time."""


@jit(do_not_specialize=["tokens"])
def mean_tokens_kernel(
    hidden_ptr,
    mask_ptr,
    cu_seqlens_ptr,
    output_ptr,
    tokens,
    size,
    BLOCK: tl.constexpr,
    MAX_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    PACKED: tl.constexpr,
):
    """One program: BLOCK columns of one sample, in one warp, whose threads own columns and exchange nothing."""
    sample = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if PACKED:
        start = tl.load(cu_seqlens_ptr + sample)
        tokens = tl.load(cu_seqlens_ptr + sample + 1) - start
    else:
        start = sample * tokens
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    count = 0.0
    for first in range(0, MAX_TOKENS, ROWS):
        row = first + tl.arange(0, ROWS)
        counts = row < tokens
        if HAS_MASK:
            counts = counts & (tl.load(mask_ptr + start + row, mask=counts, other=0) != 0)
        inside = counts[:, None] & (column < size)[None, :]
        offset = (start + row[:, None]) * size + column[None, :]
        total += tl.sum(tl.load(hidden_ptr + offset, mask=inside, other=0.0).to(tl.float32), axis=0)
        count += tl.sum(counts.to(tl.float32), axis=0)
    mean = total / tl.maximum(count, 1.0)
    tl.store(output_ptr + sample * size + column, mean.to(output_ptr.dtype.element_ty), mask=column < size)


def mean_tokens(hidden_states: Tensor, attention_mask: Tensor | None = None, packed: Packed | None = None) -> Tensor:
    """
    `(samples, hidden)`, summed in float32, of `hidden_states` `(samples, tokens, hidden)` or, with `packed`, their
    layout, `(1, tokens of all samples, hidden)`. `attention_mask` `(samples, tokens)` bool has the tokens that count;
    it is not used with `packed`. Inputs are contiguous; the mean of no tokens is 0.
    """
    batch, tokens, size = hidden_states.shape
    samples, longest = (batch, tokens) if packed is None else (len(packed), packed.longest)
    output = hidden_states.new_empty((samples, size))
    block = min(256, power_of_two(size))
    launch(
        mean_tokens_kernel,
        (samples, -(-size // block)),
        hidden_states,
        hidden_states if attention_mask is None else attention_mask,
        hidden_states if packed is None else packed.cu_seqlens,
        output,
        tokens,
        size,
        BLOCK=block,
        MAX_TOKENS=power_of_two(longest),
        ROWS=min(ROWS, power_of_two(longest)),
        HAS_MASK=attention_mask is not None and packed is None,
        PACKED=packed is not None,
        num_warps=1,
    )
    return output


def mean_tokens_reference(
    hidden_states: Tensor, attention_mask: Tensor | None = None, packed: Packed | None = None
) -> Tensor:
    """`mean_tokens` in torch operations."""
    if packed is not None:
        hidden_states, attention_mask = packed.padded(hidden_states)
    if attention_mask is None:
        return hidden_states.mean(1)
    # A product with the mask reads the hidden states once.
    total = torch.bmm(attention_mask.to(hidden_states.dtype).unsqueeze(1), hidden_states).squeeze(1)
    return (total / attention_mask.sum(1, keepdim=True).clamp(min=1)).to(hidden_states.dtype)
