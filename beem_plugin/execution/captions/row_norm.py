"""A residual sum and its layer normalisation, which a decoder needs both, in one kernel on a GPU."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.kernel_launch import launch

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

if triton is not None:

    @triton.jit
    def add_norm_kernel(first, second, weight, bias, total, result, size, eps, BLOCK: tl.constexpr):
        """A row. The sum is rounded to its precision before it is normalised, as it is when it is stored between."""
        row = tl.program_id(0).to(tl.int64) * size
        column = tl.arange(0, BLOCK)
        inside = column < size
        added = tl.load(first + row + column, mask=inside, other=0.0).to(tl.float32)
        added += tl.load(second + row + column, mask=inside, other=0.0).to(tl.float32)
        rounded = added.to(total.dtype.element_ty)
        tl.store(total + row + column, rounded, mask=inside)
        value = rounded.to(tl.float32)
        mean = tl.sum(value, axis=0) / size
        centred = tl.where(inside, value - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / size + eps)
        gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(result + row + column, (centred * scale * gain + shift).to(result.dtype.element_ty), mask=inside)


def add_and_normalise(hidden: Tensor, update: Tensor, norm: Any, use_kernel: bool) -> tuple[Tensor, Tensor]:
    """
    # Parameters

    hidden, update : `Tensor`
        `(n, hidden)`, contiguous.
    norm : `torch.nn.LayerNorm`
    use_kernel : `bool`

    # Returns

    `tuple[Tensor, Tensor]`
        Their sum, and what `norm` says about it.
    """
    if not use_kernel or type(norm) is not torch.nn.LayerNorm or norm.bias is None:
        total = hidden + update
        return total, norm(total)
    total, result = torch.empty_like(hidden), torch.empty_like(hidden)
    count, size = hidden.shape
    launch(
        add_norm_kernel,
        (count,),
        hidden,
        update,
        norm.weight,
        norm.bias,
        total,
        result,
        size,
        norm.eps,
        BLOCK=1 << (size - 1).bit_length(),
    )
    return total, result
