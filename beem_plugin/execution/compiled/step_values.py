"""The values of a translated step: variables of a kernel, and the numbers that it reads; the source of kernels."""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from beem_plugin.execution.compiled.step_trace import UnsupportedStep, traced_samples
from beem_plugin.exits.state import ExitState
from beem_plugin.kernels.launch import tl, triton


@dataclass
class Value:
    """A variable, `(block, labels)` if `per_label`, else `(block,)`; `kind` is `"float"`, `"int"` or `"bool"`."""

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


def as_kind(text: str, kind: str) -> str:
    """A float64 expression as one of this kind."""
    return {"float": text, "int": f"({text}).to(tl.int64)", "bool": f"({text}) != 0"}[kind]


class Translation:
    """A step that is being translated: the values of its graph's nodes, and the lines written so far."""

    def __init__(self, num_labels: int) -> None:
        self.num_labels, self.samples = num_labels, traced_samples(num_labels)
        self.source = StepSource()
        self.values: dict[Node, Any] = {}
        self.count = 0

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

    def assign_float(self, node: Node, text: str) -> Value:
        """Assigns a float64 expression, converted to the type of `node`."""
        return self.assign(node, as_kind(text, kind_of(node.meta["val"].dtype)))


class StateLayout:
    """Where the tensors of a policy's state lie in a float64 buffer `(samples, width)`; wide ones have all labels."""

    def __init__(self, num_labels: int) -> None:
        self.num_labels = num_labels
        self.places: dict[str, tuple[int, int, torch.dtype]] = {}
        """First column, number of columns and type."""
        self.width = 0

    def add(self, state: ExitState) -> None:
        for name, tensor in state.tensors.items():
            if tuple(tensor.shape[1:]) not in ((), (1,), (self.num_labels,)):
                raise UnsupportedStep(f"state {name} of shape {tuple(tensor.shape)}")
            columns = tensor[0].numel()
            if name not in self.places:
                self.places[name] = (self.width, columns, tensor.dtype)
                self.width += columns
            elif self.places[name][1:] != (columns, tensor.dtype):
                raise UnsupportedStep(f"state {name} changes its shape or type")

    def value(self, name: str) -> Value:
        """The variable that holds this tensor."""
        _, columns, dtype = self.places[name]
        return Value(f"state_{name}", self.num_labels > 1 and columns == self.num_labels, kind_of(dtype))

    def load(self, name: str) -> str:
        value = self.value(name)
        return as_kind(load("state", self._where(name, value.per_label), value.per_label), value.kind)

    def store(self, name: str, value: Value, buffer: str) -> str:
        return store(f"{buffer} + {self._where(name, value.per_label)}", value)

    def _where(self, name: str, per_label: bool) -> str:
        first = self.places[name][0]
        return f"sample[:, None] * WIDTH + {first} + column[None, :]" if per_label else f"sample * WIDTH + {first}"


def load(pointer: str, where: str, per_label: bool) -> str:
    return f"tl.load({pointer} + {where}, mask={'is_real' if per_label else 'inside'}, other=0.0)"


def store(target: str, value: Value) -> str:
    """Stores a value also where it is one number for all samples."""
    shape, mask = ("(BLOCK, LABELS)", "is_real") if value.per_label else ("(BLOCK,)", "inside")
    return f"tl.store({target}, {value.as_float()} + tl.zeros({shape}, tl.float64), mask={mask})"


_kernels: dict[str, Any] = {}
"""Compiled kernels by their source, which is all that they depend on."""


def compile_source(text: str) -> Any:
    """The kernel of this source, compiled at its first launch. Triton reads the source of a kernel from its file."""
    if text not in _kernels:
        name = f"<policy step {len(_kernels)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        space: dict[str, Any] = {"triton": triton, "tl": tl}
        exec(compile(text, name, "exec"), space)
        _kernels[text] = space["policy_step"]
    return _kernels[text]
