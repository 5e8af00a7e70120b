"""
Triton's interpreter, which runs kernels on the CPU, looks all functions of its language up at each launch and all types
at each operation. To keep what it finds makes small kernels a fifth faster.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np


def keep_lookups() -> None:
    """No effect without Triton."""
    try:
        from triton import language
        from triton.runtime import interpreter
    except ImportError:
        return

    @functools.cache
    def builtins(package: Any) -> list[tuple[str, Any]]:
        return [(name, member) for name, member in inspect.getmembers(package) if language.core.is_builtin(member)]

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name, member in builtins(package):
            if getattr(package, name) is member:  # and not patched for the kernel that calls this one
                interpreter._patch_attr(package, name, member, builder, scope)

    numpy_type_of_scalar = functools.cache(interpreter._get_np_dtype)

    def numpy_type(kind: Any) -> np.dtype[Any]:
        scalar = kind.element_ty if isinstance(kind, language.block_type) else kind
        return np.dtype(np.uint64) if isinstance(scalar, language.pointer_type) else numpy_type_of_scalar(scalar)

    interpreter._patch_builtin, interpreter._get_np_dtype = patch_builtin, numpy_type
