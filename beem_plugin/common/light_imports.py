"""Imports the modelling code of transformers without what only training and serving in a cluster need."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from transformers import utils
from transformers.utils import import_utils

GUARDS = (
    "is_accelerate_available",
    "is_scipy_available",
    "is_torch_distributed_available",
    "is_torch_flex_attn_available",
)
"""Functions by which transformers finds out what is installed."""
MODELLING = ("transformers.modeling_utils", "transformers.generation.utils")
"""All models import these."""
COMPILER = "torch._dynamo"
VMAP = "torch._dynamo._trace_wrapped_higher_order_op"
"""A module of torch's compiler of which transformers takes one context manager, for masks made by `vmap`."""


def import_for_inference() -> None:
    """
    Imports transformers' modelling code as on a machine without accelerate, scipy, distributed torch and flex
    attention, and leaves torch's compiler out until it is used. These take longer to import than torch. For a process
    that only predicts; without effect if the code is already imported, or was made for another release.
    """
    if MODELLING[0] in sys.modules or not all(hasattr(import_utils, name) for name in GUARDS):
        return
    for module in (utils, import_utils):
        for name in GUARDS:
            setattr(module, name, lambda *_, **__: False)
    with without_compiler():
        for name in MODELLING:
            importlib.import_module(name)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Decorators of torch's compiler return functions as they are, and its package is not imported."""
    if COMPILER in sys.modules:
        yield
        return
    compiler: Any = ModuleType(COMPILER)
    compiler.allow_in_graph = compiler.assume_constant_result = compiler.disable = undecorated
    vmap: Any = ModuleType(VMAP)
    vmap.TransformGetItemToIndex = lambda: importlib.import_module(VMAP).TransformGetItemToIndex()
    sys.modules.update({COMPILER: compiler, VMAP: vmap})
    setattr(torch, "_dynamo", compiler)  # noqa: B010
    try:
        yield
    finally:
        delattr(torch, "_dynamo")
        del sys.modules[COMPILER], sys.modules[VMAP]


def undecorated(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    return (lambda found: found) if function is None else function
