"""Launches Triton kernels with less host work than Triton's own launcher, which takes longer than a small kernel."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

triton: Any = None
tl: Any = None
if torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ:  # elsewhere its import would take time for nothing
    with suppress(ImportError):  # not available on every platform
        triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")

INT32_LIMIT = 2**31
_compiled: dict[tuple[Any, ...], Any] = {}


def jit(**options: Any) -> Callable[[Any], Any]:
    """`triton.jit`, which leaves the function as it is without Triton."""
    return triton.jit(**options) if triton is not None else lambda function: function


def launch(kernel: Any, grid: tuple[int, ...], *values: Any, num_warps: int = 4, **constants: Any) -> None:
    """
    `kernel[grid](*values, num_warps=num_warps, **constants)`, with a cache of compiled kernels that is keyed by the
    properties of the arguments that Triton specialises on. `values`, the first a tensor, and `constants`, the
    `tl.constexpr` arguments, are in the order of the kernel's parameters, where the constants come last.
    """
    key = (kernel, values[0].device, num_warps, *constants.values(), *map(specialization, values))
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = kernel[grid](*values, **constants, num_warps=num_warps)
        # The interpreter returns no compiled kernel.
        _compiled[key] = compiled if hasattr(type(compiled), "__getitem__") else False
        return
    if compiled is not False:
        try:
            compiled[(*grid, 1, 1)[:3]](*values, *constants.values())
            return
        except TypeError:  # Triton releases that expect other arguments; raised before anything runs
            _compiled[key] = False
    kernel[grid](*values, **constants, num_warps=num_warps)


def specialization(value: Any) -> Any:
    """The properties of an argument that Triton compiles into a kernel."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return "one" if value == 1 else (value % 16 == 0, -INT32_LIMIT <= value < INT32_LIMIT)
    return float


def power_of_two(size: int) -> int:
    """The smallest power of 2 that is at least `size`."""
    return 1 << (size - 1).bit_length()
