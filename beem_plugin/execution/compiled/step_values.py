"""The values of a translated step: variables of a kernel, and the numbers that it reads; the source of kernels."""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from beem_plugin.kernels.launch import tl, triton


def traced_samples(num_labels: int) -> int:
    """Number of samples of the traced example. It differs from the number of labels, to tell the dimensions apart."""
    return 7 if num_labels != 7 else 11


class UnsupportedStep(Exception):
    """The step contains an operation that has no translation."""


@dataclass
class Value:
    """
    A variable of the kernel, `(block, labels)` if `per_label`, otherwise `(block,)`; `kind` is `"float"`, `"int"` or
    `"bool"`.
    """

    text: str
    per_label: bool
    kind: str

    def as_float(self) -> str:
        return self.text if self.kind == "float" else f"({self.text}).to(tl.float64)"

    def as_bool(self) -> str:
        return self.text if self.kind == "bool" else f"({self.text} != 0)"


@dataclass
class StepSource:
    """The `lines` of a kernel's body, from loads to stores, and the `numbers` that it reads, in this order."""

    lines: list[str] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def kind_of(dtype: torch.dtype) -> str:
    return "float" if dtype.is_floating_point else "bool" if dtype == torch.bool else "int"


class Translation:
    """A step that is being translated: the values of its graph's nodes, and the lines written so far."""

    def __init__(self, module: GraphModule, num_labels: int) -> None:
        self.module, self.num_labels = module, num_labels
        self.samples = traced_samples(num_labels)
        self.source = StepSource()
        self.values: dict[Node, Any] = {}
        self.count = 0

    def run(self, inputs: list[tuple[Value, str]]) -> list[Any]:
        """
        The values of the graph's outputs, `None` for one without. `inputs` are the variables of its placeholders, in
        their order, each with the expression that loads it.
        """
        waiting = iter(inputs)
        outputs: list[Any] = []
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.values[node], load = next(waiting)
                if node.users:  # exits that differ only in what they ignore share a kernel
                    self.source.lines.append(f"{self.values[node].text} = {load}")
            elif node.op == "get_attr":
                self.values[node] = getattr(self.module, str(node.target))
            elif node.op == "call_function":
                self.values[node] = self.translate(node)
            elif node.op == "output":
                outputs = [None if one is None else self.value(one, node) for one in node.args[0]]
        return outputs

    def translate(self, node: Node) -> Any:
        """The value of a node that calls a function, or a tensor or list of values."""
        raise UnsupportedStep(f"operation {node.target}")

    def value(self, argument: Any, node: Node) -> Value:
        """`argument` as a value; numbers and constant tensors are read from `numbers`."""
        found = self.values[argument] if isinstance(argument, Node) else argument
        if isinstance(found, Value):
            return found
        if isinstance(found, Tensor):
            return self.constant(found)
        if isinstance(found, (bool, int, float)):
            return Value(f"tl.load(numbers + {self.number(float(found))})", False, "float")
        raise UnsupportedStep(f"argument {argument!r} of {node.target}")

    def operand(self, argument: Any, node: Node) -> Value:
        """`argument`, with a dimension of labels if the result of `node` has one."""
        value = self.value(argument, node)
        is_scalar = not isinstance(argument, Node) or "tl.load(numbers" in value.text
        if value.per_label or is_scalar or not self.has_labels(node):
            return value
        return Value(f"({value.text})[:, None]", False, value.kind)

    def pair(self, node: Node) -> tuple[Value, Value]:
        return self.operand(node.args[0], node), self.operand(node.args[1], node)

    def number(self, value: float) -> int:
        self.source.numbers.append(value)
        return len(self.source.numbers) - 1

    def constant(self, tensor: Tensor) -> Value:
        """A tensor that the step did not compute: a number, or one number per label."""
        if tensor.numel() == 1:
            return Value(f"tl.load(numbers + {self.number(float(tensor))})", False, "float")
        if tensor.numel() != self.num_labels or tensor.shape[-1] != self.num_labels:
            raise UnsupportedStep(f"a constant of shape {tuple(tensor.shape)}")
        places = [self.number(float(one)) for one in tensor.reshape(-1).double()]
        return Value(f"tl.load(numbers + {places[0]} + column, mask=is_label, other=0.0)[None, :]", True, "float")

    def has_labels(self, node: Node) -> bool:
        shape = tuple(node.meta["val"].shape)
        if shape in ((self.samples,), (self.samples, 1), (), (1,), (1, 1)):
            return False
        if shape in ((self.samples, self.num_labels), (self.num_labels,), (1, self.num_labels)):
            return True
        raise UnsupportedStep(f"a value of shape {shape}")

    def assign(self, node: Node, text: str) -> Value:
        self.count += 1
        name = f"v{self.count}"
        self.source.lines.append(f"{name} = {text}")
        return Value(name, self.has_labels(node), kind_of(node.meta["val"].dtype))

    def full(self, node: Node, text: str) -> Value:
        """`text`, one number, for every sample (and label)."""
        zeros = "tl.zeros((BLOCK, LABELS), tl.float64)" if self.has_labels(node) else "tl.zeros((BLOCK,), tl.float64)"
        kind = kind_of(node.meta["val"].dtype)
        converted = {"float": "", "int": ".to(tl.int64)", "bool": " != 0"}[kind]
        return self.assign(node, f"({zeros} + {text}){converted}")

    def column_of(self, node: Node, value: Value, place: str) -> Value:
        picked = f"tl.sum(tl.where(column[None, :] == {place}, {value.as_float()}, 0.0), axis=1)"
        kind = kind_of(node.meta["val"].dtype)
        return self.assign(node, {"float": picked, "int": f"{picked}.to(tl.int64)", "bool": f"{picked} != 0"}[kind])

    def row_of(self, node: Node) -> Value:
        """The first argument of a reduction over labels."""
        value = self.value(node.args[0], node)
        dims = node.args[1] if len(node.args) > 1 else None
        listed = dims if isinstance(dims, (list, tuple)) else [dims]
        if list(listed) not in ([-1], [1]):
            raise UnsupportedStep(f"{node.target} over dimensions {dims}")
        if not value.per_label and self.num_labels > 1:
            raise UnsupportedStep(f"{node.target} over samples")
        return value if value.per_label else Value(f"({value.text})[:, None]", True, value.kind)


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
