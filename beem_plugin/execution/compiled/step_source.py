"""
Translates the traced step of an exit policy into the source of a Triton kernel.

A policy's step is tensor code over samples: every value has one number per sample or one per sample and label. Such a
graph of torch operations becomes one kernel in which each program holds a block of samples. Numbers (thresholds,
weights, tables) are read from memory, so that exits whose steps have the same structure share a kernel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from beem_plugin.execution.compiled.step_values import Translation, UnsupportedStep, Value, kind_of

aten = torch.ops.aten

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
SAME = (
    *("clone", "detach", "alias", "view", "_unsafe_view", "expand", "repeat", "unsqueeze", "squeeze", "_to_copy"),
    *("lift_fresh_copy", "lift_fresh", "contiguous", "reshape", "to"),
)
FILLED = ("full", "full_like", "new_full", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones")
ROW_REDUCTIONS = {"amax": ("tl.max", "-float('inf')"), "amin": ("tl.min", "float('inf')"), "sum": ("tl.sum", "0.0")}


class Translator(Translation):
    """Builds the source of one exit's step, node by node."""

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
        return super().translate(node)

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
