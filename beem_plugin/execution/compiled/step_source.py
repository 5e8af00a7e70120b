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
from torch.fx import GraphModule, Node

from beem_plugin.execution.compiled.step_trace import UnsupportedStep
from beem_plugin.execution.compiled.step_values import Translation, Value, kind_of

aten = torch.ops.aten

UNARY = {
    aten.exp.default: "tl.exp({0})",
    aten.log.default: "tl.log({0})",
    aten.neg.default: "-({0})",
    aten.abs.default: "tl.abs({0})",
    aten.sqrt.default: "tl.sqrt({0})",
    aten.reciprocal.default: "1.0 / ({0})",
    aten.sigmoid.default: "1.0 / (1.0 + tl.exp(-({0})))",
    aten.isnan.default: "({0}) != ({0})",
}
ARITHMETIC = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LOGIC = {"bitwise_and": "&", "logical_and": "&", "bitwise_or": "|", "logical_or": "|", "bitwise_xor": "^"}
SAME = (
    *("clone", "detach", "alias", "view", "_unsafe_view", "expand", "repeat", "unsqueeze", "squeeze", "_to_copy"),
    *("lift_fresh_copy", "lift_fresh", "contiguous", "reshape", "to"),
)
FILLED = ("full", "full_like", "scalar_tensor")
ROW_REDUCTIONS = {"amax": ("tl.max", "-float('inf')"), "amin": ("tl.min", "float('inf')"), "sum": ("tl.sum", "0.0")}


class Translator(Translation):
    """Builds the source of one exit's step, node by node."""

    def run(self, module: GraphModule, inputs: list[tuple[Value, str]]) -> list[Any]:
        """The graph's outputs; `inputs` are the variables of its placeholders, each with the code that loads it."""
        waiting = iter(inputs)
        outputs: list[Any] = []
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.values[node], load = next(waiting)
                if node.users:  # exits that differ only in what they ignore share a kernel
                    self.source.lines.append(f"{self.values[node].text} = {load}")
            elif node.op == "get_attr":
                self.values[node] = getattr(module, str(node.target))
            elif node.op == "call_function":
                self.values[node] = self.translate(node)
            elif node.op == "output":
                outputs = [None if one is None else self.value(one, node) for one in node.args[0]]
        return outputs

    def translate(self, node: Node) -> Any:
        """The value of a node that calls a function, or a tensor or list of values."""
        target, name = node.target, str(node.target).removeprefix("aten.").split(".")[0]
        args: Any = node.args
        if str(target).startswith("<built-in function getitem>"):
            return self.values[args[0]][args[1]]
        if target in UNARY:
            return self.assign(node, UNARY[target].format(self.operand(args[0], node).as_float()))
        if name in ARITHMETIC and len(args) >= 2:
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
        if name in FILLED:
            number = self.value(args[0] if name == "scalar_tensor" else args[-1], node).as_float()
            shape = "(BLOCK, LABELS)" if self.has_labels(node) else "(BLOCK,)"
            return self.assign_float(node, f"(tl.zeros({shape}, tl.float64) + {number})")
        if name in ROW_REDUCTIONS:
            function, neutral = ROW_REDUCTIONS[name]
            return self.assign(node, f"{function}(tl.where(is_real, {self.row_of(node)}, {neutral}), axis=1)")
        if hasattr(self, f"do_{name}"):
            return getattr(self, f"do_{name}")(node)
        raise UnsupportedStep(f"operation {target}")

    def column_of(self, node: Node, value: Value, place: str) -> Value:
        picked = f"tl.sum(tl.where(column[None, :] == {place}, {value.as_float()}, 0.0), axis=1)"
        return self.assign_float(node, picked)

    def row_of(self, node: Node) -> str:
        """The first argument of a reduction over labels."""
        value = self.value(node.args[0], node)
        dims = node.args[1] if len(node.args) > 1 else None
        listed = dims if isinstance(dims, (list, tuple)) else [dims]
        if list(listed) not in ([-1], [1]):
            raise UnsupportedStep(f"{node.target} over dimensions {dims}")
        if not value.per_label and self.num_labels > 1:
            raise UnsupportedStep(f"{node.target} over samples")
        return value.as_float() if value.per_label else f"({value.as_float()})[:, None]"

    def arithmetic(self, node: Node, template: str) -> Value:
        left, right = self.pair(node)
        first, second = left.as_float(), right.as_float()
        if (alpha := node.kwargs.get("alpha", 1)) != 1:
            second = f"({second}) * tl.load(numbers + {self.number(float(alpha))})"  # type: ignore[arg-type]
        if node.kwargs.get("rounding_mode") is not None:
            raise UnsupportedStep("division with rounding")
        return self.assign_float(node, f"({template.format(first, second)})")

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

    def do_argmax(self, node: Node) -> Value:
        row = self.row_of(node)
        highest = f"tl.max(tl.where(is_real, {row}, -float('inf')), axis=1)[:, None]"
        # The first of several equally large ones, as torch does on a CPU.
        return self.assign(
            node, f"tl.min(tl.where(is_real & ({row} == {highest}), column[None, :], LABELS), axis=1).to(tl.int64)"
        )

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
        if tuple(table.meta["val"].shape) != (self.num_labels,):  # type: ignore[union-attr]
            raise UnsupportedStep("indexing samples")
        index = self.value(indices[0], node)  # type: ignore[index]
        return self.column_of(node, self.value(table, node), f"{index.text}[:, None]")

    def do_scatter(self, node: Node, added: bool = False) -> Value:
        table, _, index, new = node.args[:4]
        before, after = self.value(table, node).as_float(), self.operand(new, node).as_float()
        chosen = f"column[None, :] == {self.value(index, node).text}[:, None]"
        return self.assign(node, f"tl.where({chosen}, {f'{before} + {after}' if added else after}, {before})")

    def do_scatter_add(self, node: Node) -> Value:
        return self.do_scatter(node, added=True)

    def do_where(self, node: Node) -> Value:
        condition = self.operand(node.args[0], node)
        chosen, other = self.operand(node.args[1], node), self.operand(node.args[2], node)
        return self.assign_float(node, f"tl.where({condition.as_bool()}, {chosen.as_float()}, {other.as_float()})")

    def do_clamp(self, node: Node) -> Value:
        bounds = (*node.args[1:], None, None)[:2]
        text = self.operand(node.args[0], node).as_float()
        for name, function, bound in zip(("min", "max"), ("tl.maximum", "tl.minimum"), bounds):
            if (bound := node.kwargs.get(name, bound)) is not None:
                text = f"{function}({text}, {self.operand(bound, node).as_float()})"
        return self.assign(node, text)

    def do_pow(self, node: Node) -> Value:
        exponent = node.args[1]
        if exponent not in (2, 2.0):
            raise UnsupportedStep(f"a power of {exponent}")
        text = self.operand(node.args[0], node).as_float()
        return self.assign(node, f"({text}) * ({text})")
