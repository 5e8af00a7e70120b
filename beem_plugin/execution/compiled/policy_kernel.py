"""One Triton kernel for the step of an exit policy, generated from the policy's own code."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from beem_plugin.execution.compiled.step_source import Translator
from beem_plugin.execution.compiled.step_values import (
    HEADER,
    StepSource,
    UnsupportedStep,
    Value,
    compile_source,
    full_row,
    kind_of,
    load,
    traced_samples,
)
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.kernels.launch import power_of_two, triton

MAX_CLASSIFIER = 32768
"""Numbers of a classifier that a program holds at once."""
MAX_LABELS = 1024
"""A program holds all labels of its samples."""
BLOCK = 32
"""Samples of a program."""


class PolicyKernel:
    """
    The steps of a policy, bound and calibrated, at all exits of a network: `step`, `output` and `score` of each exit in
    one kernel launch for any number of samples, in float64. The kernels are generated from a trace of the policy's own
    methods, so that every policy made of supported tensor operations has one, a user's included. An operation without
    translation raises `UnsupportedStep`, as without Triton: the policy is then stepped with torch operations.

    The policy's numbers are copied: a policy that is calibrated or changed needs a new object.
    """

    def __init__(self, policy: ExitPolicy, device: torch.device) -> None:
        if triton is None:
            raise UnsupportedStep("Triton is not installed")
        if policy.num_labels > MAX_LABELS:
            raise UnsupportedStep(f"{policy.num_labels} labels")
        self.policy, self.device = policy, device
        self.samples = traced_samples(policy.num_labels)
        self.num_exits, self.num_labels = policy.num_exits, policy.num_labels
        self.layout: dict[str, tuple[int, int, torch.dtype]] = {}
        """First column, number of columns and type of each tensor of the state in the state buffer."""
        self.width = 0
        self.sources: dict[int, StepSource] = {}
        self.has_score = False
        state = policy.start(self.samples, self.num_exits, "cpu")
        self._extend_layout(state)
        traces = {}
        for exit_number in range(1, self.num_exits + 1):
            if exit_number < self.num_exits and not (policy.can_leave(exit_number) or policy.needs(exit_number)):
                continue
            traces[exit_number] = (state, *self._trace(exit_number, state))
            state = traces[exit_number][2]
            self._extend_layout(state)
        for exit_number, (before, module, after, has_score) in traces.items():
            self.has_score = has_score
            self.sources[exit_number] = self._translate(module, before, after)
        self.numbers = {
            number: torch.tensor([*source.numbers, 0.0], dtype=torch.float64, device=device)
            for number, source in self.sources.items()
        }
        self.kernels = {number: compile_source(self._whole(source)) for number, source in self.sources.items()}

    def start(self, samples: int) -> Tensor:
        """`(samples, width)` float64 on the device: the state before exit 1."""
        state = self.policy.start(samples, self.num_exits, "cpu")
        buffer = torch.zeros(samples, self.width, dtype=torch.float64)
        for name, tensor in state.tensors.items():
            first, count, _ = self.layout[name]
            buffer[:, first : first + count] = tensor.reshape(samples, -1).to(torch.float64)
        return buffer.to(self.device)

    def __call__(
        self,
        exit_number: int,
        logits: Tensor,
        state: Tensor,
        out: Tensor,
        new_state: Tensor | None = None,
        extra: dict[str, Tensor] | None = None,
        classifier: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """
        The state for the next exit, from `logits` `(samples, labels)`, contiguous, of any floating type, and `state`
        `(samples, width)` float64, as `start` or an earlier call returned it. `out` `(samples, 2 + labels)` float64, on
        the device or in pinned host memory, gets 1 for a sample that exits and 0 for others, the score (0 for a policy
        without), and the output.

        The new state is a new tensor, or `new_state`, which may be `state` itself. `extra` holds the policy's
        `required_signals`, `(samples,)` each. With `classifier`, weight `(labels, size)` and bias `(labels,)`, `logits`
        is its input `(1, size)`, and they are computed in the kernel; see `takes_classifier`.
        """
        samples = len(logits)
        new_state = torch.empty_like(state) if new_state is None else new_state
        block = 1 if samples == 1 else BLOCK
        signals = [extra[name].contiguous() for name in self.policy.required_signals] if extra else []
        self.kernels[exit_number][(-(-samples // block),)](
            logits,
            *signals,
            state,
            new_state,
            self.numbers[exit_number],
            out,
            *(classifier or (logits, logits)),
            samples,
            self.num_labels,
            logits.shape[1],
            WIDTH=max(1, self.width),
            BLOCK=block,
            LABELS=self.padded_labels,
            SIZE=0 if classifier is None else power_of_two(logits.shape[1]),
            num_warps=4 if classifier is not None else 1 if block == 1 else 2,
        )
        return new_state

    @property
    def padded_labels(self) -> int:
        return max(2, power_of_two(self.num_labels))

    def takes_classifier(self, samples: int, size: int) -> bool:
        """Whether the kernel can compute a classifier of vectors of this size for so many samples."""
        return samples == 1 and self.num_labels > 1 and self.padded_labels * power_of_two(size) <= MAX_CLASSIFIER

    @cached_property
    def input_names(self) -> list[str]:
        return ["logits", *(f"signal_{name}" for name in self.policy.required_signals)]

    def _extend_layout(self, state: ExitState) -> None:
        for name, tensor in state.tensors.items():
            shape = tuple(tensor.shape[1:])
            if shape not in ((), (1,), (self.num_labels,)):
                raise UnsupportedStep(f"state {name} of shape {tuple(tensor.shape)}")
            columns = tensor[0].numel()
            if name not in self.layout:
                self.layout[name] = (self.width, columns, tensor.dtype)
                self.width += columns
            elif self.layout[name][1:] != (columns, tensor.dtype):
                raise UnsupportedStep(f"state {name} changes its shape or type")

    def _trace(self, exit_number: int, state: ExitState) -> tuple[Any, ExitState, bool]:
        """The graph of one exit, an example of the state after it, and whether there is a score."""
        names = list(state.tensors)
        generator = torch.Generator().manual_seed(exit_number)
        logits = torch.randn(self.samples, self.num_labels, generator=generator)
        signals = [torch.rand(self.samples, generator=generator) for _ in self.policy.required_signals]
        after_names: list[str] = []
        has_score = False

        def step(logits: Tensor, signals: list[Tensor], tensors: list[Tensor]) -> list[Any]:
            nonlocal has_score
            found = ExitSignals(logits, dict(zip(self.policy.required_signals, signals, strict=True)))
            before = ExitState(**dict(zip(names, tensors, strict=True)))
            leaves, after = self.policy.step(exit_number, found, before)
            score = self.policy.score(after)
            after_names[:] = list(after.tensors)
            has_score = score is not None
            return [leaves, score, self.policy.output(exit_number, found, after), *after.tensors.values()]

        inputs = (logits, signals, list(state.tensors.values()))
        try:
            module = make_fx(step)(*inputs)
            results = step(*inputs)
        except Exception as error:  # whatever a user's step does that cannot be traced
            raise UnsupportedStep(f"{type(error).__name__}: {error}") from error
        module.graph.eliminate_dead_code()
        module.recompile()
        return module, ExitState(**dict(zip(after_names, results[3:], strict=True))), has_score

    def _translate(self, module: Any, before: ExitState, after: ExitState) -> StepSource:
        translator = Translator(module, self.num_labels)
        per_label = self.num_labels > 1
        logits = "logits_" if per_label else "tl.sum(logits_, axis=1)"
        inputs = [(Value("all_logits", per_label, "float"), logits)]
        for name in self.input_names[1:]:
            inputs.append((Value(f"{name}_", False, "float"), f"{load(name, 'sample', False)}.to(tl.float64)"))
        for name, tensor in before.tensors.items():
            first, columns, dtype = self.layout[name]
            wide = per_label and tensor.dim() == 2 and columns == self.num_labels
            where = f"sample[:, None] * WIDTH + {first} + column[None, :]" if wide else f"sample * WIDTH + {first}"
            kind = kind_of(dtype)
            converted = {"float": "", "int": ".to(tl.int64)", "bool": " != 0"}[kind]
            inputs.append((Value(f"state_{name}", wide, kind), load("state", where, wide) + converted))
        leaves, score, output, *tensors = translator.run(inputs)
        lines = translator.source.lines
        target = "out + sample * (2 + num_labels)"
        lines.append(f"tl.store({target}, {full_row(leaves)}, mask=inside)")
        lines.append(f"tl.store({target} + 1, {'sample * 0.0' if score is None else full_row(score)}, mask=inside)")
        if output.per_label:
            wide_target = "out + sample[:, None] * (2 + num_labels) + 2 + column[None, :]"
            lines.append(f"tl.store({wide_target}, {output.as_float()}, mask=is_real)")
        else:
            lines.append(f"tl.store({target} + 2, {full_row(output)}, mask=inside)")
        for name, value in zip(after.tensors, tensors, strict=True):
            first = self.layout[name][0]
            if value.per_label:
                place = f"new_state + sample[:, None] * WIDTH + {first} + column[None, :]"
                lines.append(
                    f"tl.store({place}, {value.as_float()} + tl.zeros((BLOCK, LABELS), tl.float64), mask=is_real)"
                )
            else:
                lines.append(f"tl.store(new_state + sample * WIDTH + {first}, {full_row(value)}, mask=inside)")
        return translator.source

    def _whole(self, source: StepSource) -> str:
        header = HEADER.format(inputs="".join(f"{name}, " for name in self.input_names))
        return header + "".join(f"    {line}\n" for line in source.lines)
