"""
An exit policy's own `step` as one tensor program over rows that are at different exits.

`step` is traced once for each exit. Exits whose traces differ in numbers alone (thresholds, weights) share one variant:
the numbers become rows of a table from which each row takes those of its exit. The program evaluates every variant on
all rows, and selects by exit. It holds no numbers of the policy, so that policies that differ in numbers share its text,
and what is compiled for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.token_signals import SUMMARIES, TokenSignals, TokenSummary

aten = torch.ops.aten
WITH_NUMBERS = ("add", "sub", "rsub", "mul", "div", "eq", "ne", "ge", "gt", "le", "lt")
"""Operations of a tensor and a number that give the same with a tensor of numbers."""
CONSTANTS = ("full", "full_like", "ones", "ones_like")


class Unsupported(Exception):
    """The policy cannot be made a program; the message says why."""


@dataclass
class _Step:
    """The trace of `step` at one exit: its inputs and results by name, `leaves` first among the results."""

    exit_number: int
    graph: Graph
    root: GraphModule
    inputs: list[str]
    results: list[str]
    numbers: list[float] = field(default_factory=list)

    @property
    def everything_leaves(self) -> bool:
        """Whether all rows exit whatever the signals are."""
        leaves = _result(self.graph)[0]
        return (
            isinstance(leaves, Node)
            and leaves.op == "call_function"
            and getattr(leaves.target, "overloadpacket", None) in [getattr(aten, name) for name in CONSTANTS]
            and (1 if "ones" in str(leaves.target) else leaves.args[1]) == 1
        )


class PolicyProgram:
    """
    # Parameters

    policy : `ExitPolicy`
        Bound and calibrated.
    exits : `list[int]`
        The numbers of the exits that are evaluated, the last one included, where `step` is not called.
    num_exits : `int`
    signals : `Mapping[str, Tensor]`
        Static tensors `(rows,)` by name: those of `TokenSummary`, and further signals.

    # Raises

    `Unsupported`
        If `step` looks at values on the host, or at logits, or remembers tensors of varying shapes.
    """

    def __init__(self, policy: ExitPolicy, exits: list[int], num_exits: int, signals: Mapping[str, Tensor]) -> None:
        rows, device = len(signals["top_token"]), signals["top_token"].device
        self.signals = dict(signals)
        self.start = policy.start(rows, num_exits, device).tensors
        self.memory: dict[str, Tensor] = {}
        steps: list[_Step] = []
        before, names = self.start, [f"start_{name}" for name in self.start]
        self.last_exit = exits[-1]
        for exit_number in exits[:-1]:
            step, values = _trace(policy, exit_number, self.signals, before, names)
            steps.append(step)
            if step.everything_leaves:
                self.last_exit = exit_number
                steps.pop()
                break
            for name, value in values.items():
                known = self.memory.setdefault(name, torch.zeros_like(value))
                if len(value) != rows or (known.shape, known.dtype) != (value.shape, value.dtype):
                    raise Unsupported(f"its state {name!r} varies in shape")
            before, names = values, [f"memory_{name}" for name in values]
        used = {name for step in steps for name in step.inputs}
        self.signals_used = {name for name in self.signals if f"signal_{name}" in used}
        self.memory = {name: value for name, value in self.memory.items() if f"memory_{name}" in used}
        self.module, self.inputs = _merged(steps, num_exits, self, device)

    @property
    def looks_at_logits(self) -> bool:
        """Whether a decision depends on the exit's logits, rather than on hidden states or positions alone."""
        return bool(self.signals_used & set(SUMMARIES))

    @property
    def text(self) -> str:
        """The program's source. Programs of equal text are the same function of `inputs`."""
        return self.module.code

    def run(self, function: Any, at_exit: Tensor) -> Tensor:
        """
        Calls `function`, the module or a compiled form of it, and keeps what the policy remembers.

        # Parameters

        function : `Callable`
        at_exit : `Tensor`
            `(rows,)` int64: the exit that each row is at, 0 for none.

        # Returns

        `Tensor`
            `(rows,)` bool: which rows exit.
        """
        leaves: Tensor = function(at_exit, *self.inputs)
        return leaves


def _trace(
    policy: ExitPolicy, exit_number: int, signals: dict[str, Tensor], state: dict[str, Tensor], names: list[str]
) -> tuple[_Step, dict[str, Tensor]]:
    """The step at one exit, and the state after it."""
    size, device = len(signals["top_token"]), signals["top_token"].device
    results: list[str] = []
    values: dict[str, Tensor] = {}

    def run(*tensors: Tensor) -> list[Tensor]:
        given = dict(zip(signals, tensors))
        extra = {name: (lambda value=value: value) for name, value in given.items() if name not in SUMMARIES}
        summary = TokenSummary(*(given[name] for name in SUMMARIES))
        before = ExitState(**dict(zip(state, tensors[len(signals) :])))
        view = TokenSignals(size, device, summary=lambda: summary, extra=extra)
        leaves, after = policy.step(exit_number, view, before)
        results[:] = ["leaves", *after.tensors]
        return [leaves, *after.tensors.values()]

    given = [*signals.values(), *state.values()]
    try:
        root = make_fx(run)(*given)
        found = root(*given)
    except Exception as error:  # whatever a user's rule does
        raise Unsupported(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__) from error
    if not isinstance(found[0], Tensor) or found[0].dtype != torch.bool or found[0].shape != (size,):
        raise Unsupported("its step gives no boolean tensor with an entry a row")
    values = dict(zip(results[1:], found[1:]))
    root.graph.eliminate_dead_code()
    if any(
        getattr(node.target, "_schema", None) is not None and node.target._schema.is_mutable
        for node in root.graph.nodes
    ):
        raise Unsupported("its step writes into tensors")
    used = [f"signal_{name}" for name in signals] + names
    placeholders = [node for node in root.graph.nodes if node.op == "placeholder"]
    inputs = [name if node.users else "" for name, node in zip(used, placeholders, strict=True)]
    return _Step(exit_number, root.graph, root, inputs, results), values


def _result(graph: Graph) -> Sequence[Any]:
    found: Any = next(iter(reversed(graph.nodes))).args[0]
    return found


def _takes_number(node: Node) -> bool:
    """Whether the node computes in float64 with one tensor and one number."""
    if node.op != "call_function" or len(node.args) != 2 or node.kwargs:
        return False
    tensor, number = node.args
    return (
        str(node.target).split(".")[1] in WITH_NUMBERS
        and isinstance(tensor, Node)
        and type(number) in (int, float)
        and tensor.meta["val"].dtype == torch.float64
    )


def _shape_of(step: _Step) -> str:
    """The trace without the numbers in which exits may differ, which are noted in `step.numbers`."""
    order = {node: at for at, node in enumerate(step.graph.nodes)}
    lines = [str([(name, *_kind(node)) for name, node in zip(step.inputs, order) if name])]
    step.numbers = []
    for node in order:
        if node.op == "placeholder":
            continue
        args: Any = node.args
        if _takes_number(node):
            step.numbers.append(float(node.args[1]))  # type: ignore[arg-type]
            args = (node.args[0], "number")
        named = torch.fx.map_arg(args, lambda found: f"node {order[found]}")
        value = str(getattr(step.root, node.target).tolist()) if node.op == "get_attr" else ""  # type: ignore[arg-type]
        lines.append(f"{node.op} {node.target} {named} {node.kwargs} {value}")
    return "\n".join([*lines, str(step.results)])


def _kind(node: Node) -> tuple[Any, ...]:
    return node.meta["val"].dtype, tuple(node.meta["val"].shape)


def _merged(
    steps: list[_Step], num_exits: int, program: PolicyProgram, device: torch.device
) -> tuple[GraphModule, list[Tensor]]:
    """The program of all steps, and its inputs but the first, `at_exit`."""
    variants: dict[str, list[_Step]] = {}
    for step in steps:
        variants.setdefault(_shape_of(step), []).append(step)
    numbers: list[list[float]] = []
    members = torch.zeros(max(len(variants), 1), num_exits + 1, dtype=torch.bool)
    for row, same in enumerate(variants.values()):
        for step in same:
            members[row, step.exit_number] = True
        for column in range(len(same[0].numbers)):
            numbers.append([0.0] * (num_exits + 1))
            for step in same:
                numbers[-1][step.exit_number] = step.numbers[column]
    values: dict[str, Tensor] = {"members": members.to(device)}
    if numbers:
        values["numbers"] = torch.tensor(numbers, dtype=torch.float64, device=device)
    values.update({f"signal_{name}": value for name, value in program.signals.items()})
    values.update({f"start_{name}": value for name, value in program.start.items()})
    values.update({f"memory_{name}": value for name, value in program.memory.items()})
    used = {name for step in steps for name in step.inputs} | {"members", "numbers"}
    values = {name: value for name, value in values.items() if name in used}
    for row, (step, *_) in enumerate(variants.values()):
        for node in step.graph.nodes:
            if node.op == "get_attr":
                values[f"constant_{row}{node.target}"] = getattr(step.root, node.target).to(device)
    graph = Graph()
    at_exit = graph.placeholder("at_exit")
    inputs = {name: graph.placeholder(name) for name in values}
    chosen = graph.call_function(aten.index_select.default, (inputs["members"], 1, at_exit))  # (variants, rows)
    gathered = graph.call_function(aten.index_select.default, (inputs["numbers"], 1, at_exit)) if numbers else None
    memory = {name: inputs[f"memory_{name}"] for name in program.memory}
    leaves: Node | None = None
    column = 0
    for row, (step, *_) in enumerate(variants.values()):
        mask = graph.call_function(aten.select.int, (chosen, 0, row))
        results, column = _copied(step, row, graph, inputs, gathered, column)
        leaving = graph.call_function(aten.logical_and.default, (results["leaves"], mask))
        leaves = leaving if leaves is None else graph.call_function(aten.logical_or.default, (leaves, leaving))
        for name in program.memory.keys() & results.keys():
            dim = program.memory[name].dim()
            wide = graph.call_function(aten.view.default, (mask, [-1, *[1] * (dim - 1)])) if dim > 1 else mask
            memory[name] = graph.call_function(aten.where.self, (wide, results[name], memory[name]))
    for name, node in memory.items():
        if node is not inputs[f"memory_{name}"]:
            graph.call_function(aten.copy_.default, (inputs[f"memory_{name}"], node))
    if leaves is None:
        leaves = graph.call_function(aten.select.int, (chosen, 0, 0))
    graph.output(leaves)
    return GraphModule(torch.nn.Module(), graph), list(values.values())


def _copied(
    step: _Step, row: int, graph: Graph, inputs: dict[str, Node], gathered: Node | None, column: int
) -> tuple[dict[str, Node], int]:
    """
    Adds the operations of variant `row` to `graph`.

    # Returns

    `tuple[dict[str, Node], int]`
        Its results by name, and the next unused row of the table of numbers.
    """
    copies: dict[Node, Node] = {}
    names = iter(step.inputs)
    for node in step.graph.nodes:
        if node.op == "placeholder":
            name = next(names)
            if name:
                copies[node] = inputs[name]
        elif node.op == "get_attr":
            copies[node] = inputs[f"constant_{row}{node.target}"]
        elif node.op == "call_function":
            if _takes_number(node):
                number = graph.call_function(aten.select.int, (gathered, 0, column))
                column += 1
                dim = node.args[0].meta["val"].dim()
                if dim > 1:
                    number = graph.call_function(aten.view.default, (number, [-1, *[1] * (dim - 1)]))
                packet = getattr(aten, str(node.target).split(".")[1])
                copies[node] = graph.call_function(packet.Tensor, (copies[node.args[0]], number))
            else:
                copies[node] = graph.node_copy(node, lambda found: copies[found])
    return dict(zip(step.results, (copies[node] for node in _result(step.graph)))), column
