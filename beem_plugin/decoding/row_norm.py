"""A residual sum and its layer normalisation, which a decoder needs both, in one kernel on a GPU."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.kernel_launch import launch, power_of_two

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU, as a rule
    triton = None

if triton is not None:

    @triton.jit
    def add_norm_kernel(
        first,
        second,
        weight,
        bias,
        total,
        result,
        kept,
        places,
        size,
        eps,
        BLOCK: tl.constexpr,
        ADDS: tl.constexpr,
        KEEPS: tl.constexpr,
    ):
        """
        A row. The sum is rounded to its precision before it is normalised, as it is when it is stored between. Without
        ADDS the row is taken from `kept` instead; with KEEPS the sum is stored there too.
        """
        slot = tl.program_id(0).to(tl.int64)
        row = slot * size
        column = tl.arange(0, BLOCK)
        inside = column < size
        if ADDS:
            added = tl.load(first + row + column, mask=inside, other=0.0).to(tl.float32)
            added += tl.load(second + row + column, mask=inside, other=0.0).to(tl.float32)
            rounded = added.to(total.dtype.element_ty)
        else:
            rounded = tl.load(kept + tl.load(places + slot) * size + column, mask=inside, other=0.0)
        tl.store(total + row + column, rounded, mask=inside)
        if KEEPS:
            tl.store(kept + tl.load(places + slot) * size + column, rounded, mask=inside)
        value = rounded.to(tl.float32)
        mean = tl.sum(value, axis=0) / size
        centred = tl.where(inside, value - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / size + eps)
        gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(result + row + column, (centred * scale * gain + shift).to(result.dtype.element_ty), mask=inside)


def add_and_normalise(
    hidden: Tensor,
    update: Tensor,
    norm: Any,
    use_kernel: bool,
    kept: Tensor | None = None,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """
    # Parameters

    hidden, update : `Tensor`
        `(n, hidden)`, contiguous.
    norm : `torch.nn.LayerNorm`
    use_kernel : `bool`
    kept, places : `Tensor`, optional
        `(rows, hidden)`, contiguous, and `(n,)` int64: where the sums are stored as well.

    # Returns

    `tuple[Tensor, Tensor]`
        Their sum, and what `norm` says about it.
    """
    if not use_kernel or not is_known(norm):
        total = hidden + update
        if kept is not None and places is not None:
            kept.index_copy_(0, places, total)
        return total, norm(total)
    return _launch(hidden, update, norm, kept, places, torch.empty_like(hidden))


def take_and_normalise(kept: Tensor, places: Tensor, norm: Any, use_kernel: bool) -> tuple[Tensor, Tensor]:
    """
    # Parameters

    kept, places : `Tensor`
        `(rows, hidden)`, contiguous, and `(n,)` int64.
    norm : `torch.nn.LayerNorm`
    use_kernel : `bool`

    # Returns

    `tuple[Tensor, Tensor]`
        `(n, hidden)` the rows at `places`, and what `norm` says about them.
    """
    if not use_kernel or not is_known(norm):
        taken = kept.index_select(0, places)
        return taken, norm(taken)
    return _launch(None, None, norm, kept, places, kept.new_empty(len(places), kept.shape[1]))


def is_known(norm: Any) -> bool:
    """Whether the kernel does what `norm` does."""
    return type(norm) is torch.nn.LayerNorm and norm.weight is not None and norm.bias is not None


def _launch(
    hidden: Tensor | None, update: Tensor | None, norm: Any, kept: Tensor | None, places: Tensor | None, total: Tensor
) -> tuple[Tensor, Tensor]:
    result = torch.empty_like(total)
    count, size = total.shape
    launch(
        add_norm_kernel,
        (count,),
        total if hidden is None else hidden,
        total if update is None else update,
        norm.weight,
        norm.bias,
        total,
        result,
        total if kept is None else kept,
        total if places is None else places,
        size,
        norm.eps,
        BLOCK=power_of_two(size),
        ADDS=hidden is not None,
        KEEPS=hidden is not None and kept is not None,
    )
    return total, result
