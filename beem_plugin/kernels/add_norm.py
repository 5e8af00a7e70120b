"""The residual sum and the layer normalisation after it, in one pass."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.kernels.launch import jit, launch, power_of_two, tl

MAX_SIZE = 8192


@jit(do_not_specialize=["residual_rows"])
def add_norm_kernel(
    hidden_ptr, residual_ptr, weight_ptr, bias_ptr, output_ptr, residual_rows, size, eps, BLOCK: tl.constexpr
):
    """One program: one row, in float32."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    total = tl.load(hidden_ptr + row * size + column, mask=inside, other=0.0).to(tl.float32)
    residual_row = row % residual_rows
    total += tl.load(residual_ptr + residual_row * size + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / size
    centred = tl.where(inside, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / size + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    output = (centred * scale * weight + bias).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + row * size + column, output, mask=inside)


def add_norm(hidden_states: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """
    `LayerNorm(hidden_states + residual)` (Ba et al. 2016), as after every sublayer of a post-norm block.
    `hidden_states` are `(batch, tokens, hidden)`, `residual` the same or, for all samples alike, `(tokens, hidden)`:
    contiguous; float16, bfloat16 or float32; `hidden` at most `MAX_SIZE`.
    """
    output = torch.empty_like(hidden_states)
    size = hidden_states.shape[-1]
    launch(
        add_norm_kernel,
        (hidden_states.numel() // size,),
        hidden_states,
        residual,
        weight,
        bias,
        output,
        residual.numel() // size,
        size,
        eps,
        BLOCK=power_of_two(size),
    )
    return output


def add_norm_reference(hidden_states: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """`add_norm` in torch operations."""
    return functional.layer_norm(hidden_states + residual, weight.shape, weight, bias, eps)
