"""Source of generated kernels: what they have in common, and their compilation."""

from __future__ import annotations

import linecache
from typing import Any

from beem_plugin.execution.compiled.step_values import Value
from beem_plugin.kernels.launch import tl, triton

HEADER = """@triton.jit
def policy_step({inputs}state, new_state, numbers, out, weight, bias, count, num_labels, size,
                WIDTH: tl.constexpr, BLOCK: tl.constexpr, LABELS: tl.constexpr, SIZE: tl.constexpr):
    sample = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    inside = sample < count
    column = tl.arange(0, LABELS)
    is_label = column < num_labels
    is_real = inside[:, None] & is_label[None, :]
    if SIZE > 0:
        place = tl.arange(0, SIZE)
        vector = tl.load(logits + sample[:, None] * size + place[None, :], mask=(place < size)[None, :], other=0.0)
        rows = tl.load(weight + column[:, None] * size + place[None, :],
                       mask=is_label[:, None] & (place < size)[None, :], other=0.0)
        products = tl.sum(vector.to(tl.float32) * rows.to(tl.float32), axis=1)
        logits_ = (products + tl.load(bias + column, mask=is_label, other=0.0).to(tl.float32))[None, :].to(tl.float64)
    else:
        logits_ = tl.load(logits + sample[:, None] * num_labels + column[None, :], mask=is_real, other=0.0)
        logits_ = logits_.to(tl.float64)
"""
_kernels: dict[str, Any] = {}
"""Compiled kernels by their source, which is all that they depend on."""


def load(pointer: str, where: str, per_label: bool) -> str:
    return f"tl.load({pointer} + {where}, mask={'is_real' if per_label else 'inside'}, other=0.0)"


def full_row(value: Value) -> str:
    """A value of one number per sample, also where it is one number for all."""
    return f"({value.as_float()} + tl.zeros((BLOCK,), tl.float64))"


def compile_source(text: str) -> Any:
    """The kernel of this source, compiled at its first launch. Triton reads the source of a kernel from its file."""
    if text not in _kernels:
        name = f"<policy step {len(_kernels)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        space: dict[str, Any] = {"triton": triton, "tl": tl}
        exec(compile(text, name, "exec"), space)
        _kernels[text] = space["policy_step"]
    return _kernels[text]
