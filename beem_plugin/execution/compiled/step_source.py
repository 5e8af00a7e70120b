"""
Translates the traced step of an exit policy into the source of a Triton kernel.

A policy's step is tensor code over samples: every value has one number per sample or one per sample and label. Such a
graph of torch operations becomes one kernel in which each program holds a block of samples. Numbers (thresholds,
weights, tables) are read from memory, so that exits whose steps have the same structure share a kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def traced_samples(num_labels: int) -> int:
    """Number of samples of the traced example. It differs from the number of labels, to tell the dimensions apart."""
    return 7 if num_labels != 7 else 11


class UnsupportedStep(Exception):
    """The step contains an operation that has no translation."""


@dataclass
class Value:
    """
    # Parameters

    text : `str`
        A variable of the kernel.
    per_label : `bool`
        `(block, labels)`, or `(block,)`.
    kind : `str`
        `"float"`, `"int"` or `"bool"`.
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
    """
    # Parameters

    lines : `list[str]`
        The body of the kernel, from loads to stores.
    numbers : `list[float]`
        What the body reads from `numbers`, in this order.
    """

    lines: list[str] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def kind_of(dtype: torch.dtype) -> str:
    return "float" if dtype.is_floating_point else "bool" if dtype == torch.bool else "int"


UNARY = {
    aten.exp.default: "tl.exp({0})",
    aten.log.default: "tl.log({0})",
    aten.neg.default: "-({0})",
    aten.abs.default: "tl.abs({0})",
    aten.sqrt.default: "tl.sqrt({0})",
    aten.reciprocal.default: "1.0 / ({0})",
    aten.sigmoid.default: "1.0 / (1.0 + tl.exp(-({0})))",
    aten.square.default: "({0}) * ({0})",
}
ARITHMETIC = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "rsub": "{1} - {0}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "clamp_min": "tl.maximum({0}, {1})",
    "clamp_max": "tl.minimum({0}, {1})",
}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LOGIC = {"bitwise_and": "&", "logical_and": "&", "bitwise_or": "|", "logical_or": "|", "bitwise_xor": "^"}
SAME: tuple[str, ...] = (
    "clone",
    "detach",
    "alias",
    "view",
    "_unsafe_view",
    "expand",
    "repeat",
    "unsqueeze",
    "squeeze",
    "_to_copy",
)
SAME += ("lift_fresh_copy", "lift_fresh", "contiguous", "reshape", "to")
FILLED = ("full", "full_like", "new_full", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones")
ROW_REDUCTIONS = {"amax": ("tl.max", "-float('inf')"), "amin": ("tl.min", "float('inf')"), "sum": ("tl.sum", "0.0")}


class Translator:
    """
    Builds the source of one exit's step, node by node.

    # Parameters

    module : `GraphModule`
        Of core torch operations, with the value of every node in its `meta["val"]`.
    num_labels : `int`
    """

    def __init__(self, module: GraphModule, num_labels: int) -> None:
        self.module, self.num_labels = module, num_labels
        self.samples = traced_samples(num_labels)
        self.source = StepSource()
        self.values: dict[Node, Any] = {}
        self.count = 0

    def run(self, inputs: list[tuple[Value, str]]) -> list[Any]:
        """
        # Parameters

        inputs : `list[tuple[Value, str]]`
            The variables of the graph's placeholders, in their order, each with the expression that loads it.

        # Returns

        `list[Value or None]`
            The graph's outputs.
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
        target, name = node.target, str(node.target).removeprefix("aten.").split(".")[0]
        args: Any = node.args
        if str(target).startswith("<built-in function getitem>"):
            return self.values[args[0]][args[1]]
        if target in UNARY:
            return self.assign(node, UNARY[target].format(self.operand(args[0], node).as_float()))
        if name in ARITHMETIC and len(args) >= 2 and not (name == "clamp_min" and args[1] is None):
            return self.arithmetic(node, ARITHMETIC[name])
        if name in COMPARISONS:
            left, right = self.pair(node)
            return self.assign(node, f"{left.as_float()} {COMPARISONS[name]} {right.as_float()}")
        if name in LOGIC:
            left, right = self.pair(node)
            return self.assign(node, f"{left.as_bool()} {LOGIC[name]} {right.as_bool()}")
        if name in ("bitwise_not", "logical_not"):
            return self.assign(node, f"({self.operand(args[0], node).as_bool()}) == 0")
        if name in SAME:
            return self.same(node)
        if name in FILLED or name == "scalar_tensor":
            return self.filled(node, name)
        if name in ROW_REDUCTIONS:
            return self.reduce(node, *ROW_REDUCTIONS[name])
        if hasattr(self, f"do_{name}"):
            return getattr(self, f"do_{name}")(node)
        raise UnsupportedStep(f"operation {target}")

    # Operands

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

    # Operations

    def arithmetic(self, node: Node, template: str) -> Value:
        left, right = self.pair(node)
        first, second = left.as_float(), right.as_float()
        if (alpha := node.kwargs.get("alpha", 1)) != 1:
            second = f"({second}) * tl.load(numbers + {self.number(float(alpha))})"  # type: ignore[arg-type]
        if node.kwargs.get("rounding_mode") is not None:
            raise UnsupportedStep("division with rounding")
        result = f"({template.format(first, second)})"
        return self.assign(node, result if kind_of(node.meta["val"].dtype) == "float" else f"{result}.to(tl.int64)")

    def same(self, node: Node) -> Any:
        found = self.values[node.args[0]] if isinstance(node.args[0], Node) else node.args[0]
        if isinstance(found, Tensor):
            return found.to(node.meta["val"].dtype)
        value = self.operand(node.args[0], node)
        kind = kind_of(node.meta["val"].dtype)
        if self.has_labels(node) and not value.per_label:
            value = self.assign(node, f"{value.as_float()} + tl.zeros((BLOCK, LABELS), tl.float64)")
            value.kind = "float"
        if kind == value.kind:
            return Value(value.text, self.has_labels(node), kind)
        text = {"float": value.as_float(), "bool": value.as_bool(), "int": f"({value.text}).to(tl.int64)"}[kind]
        return self.assign(node, text)

    def filled(self, node: Node, name: str) -> Value:
        if "zeros" in name or "ones" in name:
            fill: Any = 1.0 if "ones" in name else 0.0
        else:
            fill = node.args[0] if name == "scalar_tensor" else node.args[-1]
        return self.full(node, self.value(fill, node).as_float())

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

    def reduce(self, node: Node, function: str, neutral: str) -> Value:
        row = self.row_of(node)
        return self.assign(node, f"{function}(tl.where(is_real, {row.as_float()}, {neutral}), axis=1)")

    def do_argmax(self, node: Node) -> Value:
        row = self.row_of(node).as_float()
        highest = f"tl.max(tl.where(is_real, {row}, -float('inf')), axis=1)[:, None]"
        # The first of several equally large ones, as torch does on a CPU.
        return self.assign(
            node, f"tl.min(tl.where(is_real & ({row} == {highest}), column[None, :], LABELS), axis=1).to(tl.int64)"
        )

    def do__log_softmax(self, node: Node) -> Value:
        row = self.row_of(node).as_float()
        self.count += 1
        below = f"b{self.count}"
        self.source.lines.append(f"{below} = {row} - tl.max(tl.where(is_real, {row}, -float('inf')), axis=1)[:, None]")
        total = f"tl.sum(tl.where(is_real, tl.exp({below}), 0.0), axis=1)"
        return self.assign(node, f"{below} - tl.log({total})[:, None]")

    def do_logsumexp(self, node: Node) -> Value:
        row = self.row_of(node).as_float()
        self.count += 1
        top = f"b{self.count}"
        self.source.lines.append(f"{top} = tl.max(tl.where(is_real, {row}, -float('inf')), axis=1)")
        self.source.lines.append(f"{top} = tl.where({top} == -float('inf'), 0.0, {top})")
        total = f"tl.sum(tl.where(is_real, tl.exp({row} - {top}[:, None]), 0.0), axis=1)"
        return self.assign(node, f"tl.log({total}) + {top}")

    def do_topk(self, node: Node) -> tuple[Any, None]:
        if node.args[1] != 2 or (len(node.args) > 2 and node.args[2] not in (-1, 1)):
            raise UnsupportedStep("topk of other than two labels")
        row = self.value(node.args[0], node).as_float()
        self.count += 1
        first, place, second = (f"{letter}{self.count}" for letter in "fps")
        self.source.lines += [
            f"{first} = tl.max(tl.where(is_real, {row}, -float('inf')), axis=1)",
            f"{place} = tl.min(tl.where(is_real & ({row} == {first}[:, None]), column[None, :], LABELS), axis=1)",
            f"{place} = is_real & (column[None, :] != {place}[:, None])",
            f"{second} = tl.max(tl.where({place}, {row}, -float('inf')), axis=1)",
        ]
        return [Value(first, False, "float"), Value(second, False, "float")], None

    def do_select(self, node: Node) -> Value:
        arguments: Any = node.args
        source, dim, place = arguments
        found = self.values[source]
        if dim not in (1, -1):
            raise UnsupportedStep("selecting samples")
        if isinstance(found, list):
            return found[place]
        return self.column_of(node, self.value(source, node), f"{int(place) % self.num_labels}")

    def do_slice(self, node: Node) -> Any:
        source, dim, start, end = (
            (*node.args, 0, 0, math.inf)[:4] if len(node.args) == 1 else (*node.args, math.inf)[:4]
        )
        value = self.value(source, node)
        if tuple(node.meta["val"].shape) == tuple(source.meta["val"].shape):  # type: ignore[union-attr]
            return value
        if dim in (1, -1) and (start or 0) == 0 and end == 1:
            return self.column_of(node, value, "0")
        raise UnsupportedStep("slicing")

    def column_of(self, node: Node, value: Value, place: str) -> Value:
        picked = f"tl.sum(tl.where(column[None, :] == {place}, {value.as_float()}, 0.0), axis=1)"
        kind = kind_of(node.meta["val"].dtype)
        return self.assign(node, {"float": picked, "int": f"{picked}.to(tl.int64)", "bool": f"{picked} != 0"}[kind])

    def do_gather(self, node: Node) -> Value:
        table, _, index = node.args[:3]
        return self.column_of(node, self.value(table, node), f"{self.value(index, node).text}[:, None]")

    def do_index(self, node: Node) -> Value:
        table, indices = node.args
        if len(indices) != 1:  # type: ignore[arg-type]
            raise UnsupportedStep("indexing by several tensors")
        index = self.value(indices[0], node)  # type: ignore[index]
        value = self.value(table, node)
        if tuple(table.meta["val"].shape) != (self.num_labels,):  # type: ignore[union-attr]
            raise UnsupportedStep("indexing samples")
        return self.column_of(node, value, f"{index.text}[:, None]")

    def do_scatter(self, node: Node) -> Value:
        table, _, index, new = node.args[:4]
        chosen = f"column[None, :] == {self.value(index, node).text}[:, None]"
        return self.assign(
            node,
            f"tl.where({chosen}, {self.operand(new, node).as_float()}, {self.value(table, node).as_float()})",
        )

    def do_scatter_add(self, node: Node) -> Value:
        table, _, index, new = node.args[:4]
        chosen = f"column[None, :] == {self.value(index, node).text}[:, None]"
        added = f"tl.where({chosen}, {self.operand(new, node).as_float()}, 0.0)"
        return self.assign(node, f"{self.value(table, node).as_float()} + {added}")

    def do_where(self, node: Node) -> Value:
        condition = self.operand(node.args[0], node)
        chosen, other = self.operand(node.args[1], node), self.operand(node.args[2], node)
        kind = kind_of(node.meta["val"].dtype)
        text = f"tl.where({condition.as_bool()}, {chosen.as_float()}, {other.as_float()})"
        return self.assign(node, {"float": text, "int": f"{text}.to(tl.int64)", "bool": f"{text} != 0"}[kind])

    def do_clamp(self, node: Node) -> Value:
        low, high = (*node.args[1:], None, None)[:2]
        low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
        text = self.operand(node.args[0], node).as_float()
        if low is not None:
            text = f"tl.maximum({text}, {self.operand(low, node).as_float()})"
        if high is not None:
            text = f"tl.minimum({text}, {self.operand(high, node).as_float()})"
        return self.assign(node, text)

    def do_nan_to_num(self, node: Node) -> Value:
        nan, high, low = (*node.args[1:], None, None, None)[:3]
        nan = node.kwargs.get("nan", nan)
        text, largest = self.operand(node.args[0], node).as_float(), torch.finfo(torch.float64).max
        bounds = (largest if high is None else high, -largest if low is None else low)
        infinite = [self.operand(bound, node).as_float() for bound in bounds]
        text = (
            f"tl.where({text} == float('inf'), {infinite[0]}, tl.where({text} == -float('inf'), {infinite[1]}, {text}))"
        )
        return self.assign(node, f"tl.where({text} != {text}, {self.operand(nan or 0.0, node).as_float()}, {text})")

    def do_pow(self, node: Node) -> Value:
        exponent = node.args[1]
        if exponent not in (2, 2.0):
            raise UnsupportedStep(f"a power of {exponent}")
        text = self.operand(node.args[0], node).as_float()
        return self.assign(node, f"({text}) * ({text})")
