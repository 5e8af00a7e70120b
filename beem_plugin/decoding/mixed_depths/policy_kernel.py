"""The step of an exit policy for tokens that are at different exits, as one Triton kernel."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from beem_plugin.execution.compiled.step_source import Translator
from beem_plugin.execution.compiled.step_trace import TracedStep, UnsupportedStep, trace_step, traced_samples
from beem_plugin.execution.compiled.step_values import StateLayout, Value, as_kind, compile_source, kind_of, load
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.token_signals import SUMMARIES, TokenSignals, TokenSummary

HEADER = """@triton.jit
def policy_step({signals}at_exit, variants, numbers, state, leaves, width_of_numbers,
                WIDTH: tl.constexpr, BLOCK: tl.constexpr, LABELS: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64) + tl.arange(0, BLOCK)
    inside = sample >= 0
    exit_number = tl.load(at_exit + tl.program_id(0))
    variant = tl.load(variants + exit_number)
    numbers += exit_number * width_of_numbers
"""


class TokenPolicyKernel:
    """
    The steps of a policy, bound and calibrated, at all exits, for rows of which each is at an exit of its own: a
    program runs the step of its row's exit. The kernel is generated from a trace of the policy's own `step`, a user's
    included. It serves policies that read the most probable token, its probability, the margin, the entropy, `position`
    and signals of hidden states only; others raise `UnsupportedStep`. Exits whose steps differ only in numbers share a
    part of it. The policy is copied: one that is calibrated or changed needs a new object.

    `exits` are evaluated, the last one included, where all rows exit; `signals` are static tensors `(rows,)`, those of
    `TokenSummary` and further ones by name. Without `use_kernel` the policy's own `step` is run.
    """

    def __init__(self, policy: ExitPolicy, exits: Sequence[int], signals: dict[str, Tensor], use_kernel: bool) -> None:
        self.policy, self.signals, self.use_kernel = copy.deepcopy(policy), signals, use_kernel
        rows, device = len(signals["top_token"]), signals["top_token"].device
        self.leaves = torch.zeros(rows, dtype=torch.bool, device=device)
        self.memory: dict[str, Tensor] = {}  # of the reference: each row's state
        self.layout = StateLayout(1)
        self.last_exit = exits[-1]
        """The exit at which all rows exit for any signals."""
        self.exits: list[int] = []
        used: set[str] = set()
        parts: dict[str, int] = {}
        numbers: dict[int, list[float]] = {}
        variants = torch.full((policy.num_exits + 1,), -1, dtype=torch.int32)
        samples = traced_samples(policy.num_labels)
        before = self.policy.start(samples, policy.num_exits, "cpu")
        for exit_number in exits[:-1]:
            generator = torch.Generator().manual_seed(exit_number)
            example = {
                name: torch.rand(samples, generator=generator).to(value.dtype) for name, value in signals.items()
            }
            traced = trace_step(self.policy, exit_number, before, example, token_signals, decides_only=True)
            if everything_leaves(traced.module):
                self.last_exit = exit_number
                break
            placeholders = [node for node in traced.module.graph.nodes if node.op == "placeholder"]
            used |= {name for name, node in zip(signals, placeholders) if node.users}
            self.layout.add(traced.before)
            self.layout.add(traced.after)
            text, numbers[exit_number] = self._translate(traced, is_first=not self.exits)
            variants[exit_number] = parts.setdefault(text, len(parts))
            self.exits.append(exit_number)
            before = traced.after
        self.signals_used = used
        self.variants = variants.to(device)
        width = max([1, *map(len, numbers.values())])
        table = [[*numbers.get(number, []), *[0.0] * width][:width] for number in range(policy.num_exits + 1)]
        self.numbers = torch.tensor(table, dtype=torch.float64, device=device)
        self.state = torch.zeros(rows, max(1, self.layout.width), dtype=torch.float64, device=device)
        self.kernel = None
        if use_kernel and parts:
            lines = HEADER.format(signals="".join(f"{name}, " for name in signals)).rstrip("\n").split("\n")
            for text, number in parts.items():
                lines += [f"    if variant == {number}:", *(f"        {line}" for line in text.split("\n"))]
            self.kernel = compile_source("\n".join(lines) + "\n")

    @property
    def reads_logits(self) -> bool:
        """Whether a decision depends on the exit's logits, not only on hidden states or positions."""
        return bool(self.signals_used & set(SUMMARIES))

    def __call__(self, at_exit: Tensor) -> Tensor:
        """`(rows,)` bool, static: which rows exit, by `at_exit` `(rows,)` int64, the exit of each, 0 for none."""
        if not self.use_kernel:
            return self.reference(at_exit)
        if self.kernel is not None:
            self.kernel[(len(self.leaves),)](
                *self.signals.values(),
                at_exit,
                self.variants,
                self.numbers,
                self.state,
                self.leaves.view(torch.uint8),
                self.numbers.shape[1],
                WIDTH=self.state.shape[1],
                BLOCK=1,
                LABELS=2,
                num_warps=1,
            )
        return self.leaves

    def reference(self, at_exit: Tensor) -> Tensor:
        """As the kernel, with the policy's own `step`."""
        for exit_number in self.exits:
            rows = (at_exit == exit_number).nonzero().flatten()
            if not len(rows):
                continue
            if exit_number == self.exits[0]:
                state = self.policy.start(len(rows), self.policy.num_exits, at_exit.device)
            else:
                state = ExitState(**{name: value[rows] for name, value in self.memory.items()})
            given = {name: value.index_select(0, rows) for name, value in self.signals.items()}
            self.leaves[rows], after = self.policy.step(exit_number, token_signals(given), state)
            for name, value in after.tensors.items():
                self.memory.setdefault(name, value.new_zeros(len(self.leaves)))[rows] = value
        return self.leaves

    def _translate(self, traced: TracedStep, is_first: bool) -> tuple[str, list[float]]:
        """The body of one exit's step, and the numbers that it reads."""
        translator = Translator(self.policy.num_labels)
        inputs = []
        for name, value in self.signals.items():
            kind = kind_of(value.dtype)
            converted = ".to(tl.float64)" if kind == "float" else ".to(tl.int64)"
            inputs.append((Value(f"of_{name}", False, kind), load(name, "sample", False) + converted))
        for name, tensor in traced.before.tensors.items():
            text, variable = self.layout.load(name), self.layout.value(name)
            if is_first:  # rows start here at any time
                if not bool((tensor == tensor[0]).all()):
                    raise UnsupportedStep(f"start of {name} differs between samples")
                text = f"tl.load(numbers + {translator.number(float(tensor[0]))}) + tl.zeros((BLOCK,), tl.float64)"
                text = as_kind(text, variable.kind)
            inputs.append((variable, text))
        leaves, _, _, *tensors = translator.run(traced.module, inputs)
        lines = translator.source.lines
        exits = f"({leaves.as_float()} + tl.zeros((BLOCK,), tl.float64)).to(tl.uint8)"
        lines.append(f"tl.store(leaves + sample, {exits})")
        lines += [self.layout.store(name, value, "state") for name, value in zip(traced.after.tensors, tensors)]
        return translator.source.text, translator.source.numbers


def token_signals(given: dict[str, Tensor]) -> TokenSignals:
    """The signals of some rows, from tensors by name."""
    summary = TokenSummary(*(given[name] for name in SUMMARIES))
    extra = {name: (lambda value=value: value) for name, value in given.items() if name not in SUMMARIES}
    return TokenSignals(len(summary.top_token), summary.top_token.device, summary=lambda: summary, extra=extra)


def everything_leaves(module: Any) -> bool:
    """Whether all rows exit for any signals, as with a fixed exit."""
    leaves = next(iter(reversed(module.graph.nodes))).args[0][0]
    if not isinstance(leaves, Node) or leaves.op != "call_function":
        return False
    name, values = str(leaves.target).split(".")[1], leaves.args
    return name in ("full", "full_like") and len(values) > 1 and values[1] is True
