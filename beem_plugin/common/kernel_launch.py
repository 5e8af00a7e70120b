"""Launching Triton kernels with less work on the host than Triton's own, which takes longer than a small kernel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

SMALL = 2**31
_compiled: dict[tuple[Any, ...], Any] = {}


def launch(kernel: Any, grid: tuple[int, ...], *values: Any, num_warps: int = 4, **constants: Any) -> None:
    """
    `kernel[grid](*values, num_warps=num_warps, **constants)`. Triton looks at every argument's kind to find the
    compiled kernel; here it is found again by what makes one kind differ from another.

    # Parameters

    kernel : `triton.JITFunction`
        Its constants are its last parameters.
    grid : `tuple[int, ...]`
        One to three numbers.
    values : `Tensor`, `int` or `float`
        The parameters that are no constants, in their order. At least the first is a tensor.
    num_warps : `int`, optional (default = `4`)
    constants : `int` or `bool`
        In the order of the kernel's parameters.
    """
    key = (kernel, values[0].device, num_warps, *constants.values(), *map(kind_of, values))
    compiled = _compiled.get(key)
    if compiled is None:
        made = kernel[grid](*values, **constants, num_warps=num_warps)
        # Triton's interpreter makes none. Asking other releases is harmless: they are asked once.
        _compiled[key] = made if hasattr(type(made), "__getitem__") else False
        return
    if compiled is not False:
        try:
            compiled[(*grid, 1, 1)[:3]](*values, *constants.values())
            return
        except TypeError:  # a release whose compiled kernels are called otherwise, which is found out before they run
            _compiled[key] = False
    kernel[grid](*values, **constants, num_warps=num_warps)


def kind_of(value: Any) -> Any:
    """What of an argument Triton may compile into a kernel."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return "one" if value == 1 else (value % 16 == 0, -SMALL <= value < SMALL)
    return float


def power_of_two(size: int) -> int:
    """The smallest power of 2 that is at least `size`."""
    return 1 << (size - 1).bit_length()
