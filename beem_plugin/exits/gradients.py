"""Tensors whose gradient is scaled on its way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor, None


def scale_gradient(tensor: Tensor, factor: float) -> Tensor:
    """`tensor` itself; the gradient that comes back through it is multiplied by `factor`."""
    return _Scaled.apply(tensor, factor)  # type: ignore[no-untyped-call]
