"""The step of a policy for many samples: in torch operations, or in one Triton kernel generated from its own code."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import first_line
from beem_plugin.execution.compiled.step_source import Translator
from beem_plugin.execution.compiled.step_trace import TracedStep, UnsupportedStep, trace_step, traced_samples
from beem_plugin.execution.compiled.step_values import StateLayout, StepSource, Value, compile_source, load, store
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals, decision_dtype
from beem_plugin.kernels.launch import power_of_two, triton

logger = logging.getLogger(__name__)

MAX_CLASSIFIER = 32768
"""Numbers of a classifier that a program holds at once."""
MAX_LABELS = 1024
"""A program holds all labels of its samples."""
BLOCK = 32
"""Samples of a program."""
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


class ClassifierSignals(ExitSignals):
    """Signals of a linear classifier; a kernel computes the logits, or they are computed when they are read."""

    def __init__(self, vectors: Tensor, classifier: torch.nn.Linear) -> None:
        self.vectors, self.classifier = vectors, classifier
        self.extra = {}

    def __len__(self) -> int:
        return len(self.vectors)

    @cached_property
    def logits(self) -> Tensor:  # type: ignore[override]
        return functional.linear(self.vectors, self.classifier.weight, self.classifier.bias).float()


class Decider:
    """
    Steps a policy by its own methods. A result is a row of `2 + labels` numbers in the decision precision: 1 for a
    sample that exits and 0 for others, the score (0 for a policy without), and the output. The memory is the policy's
    state in any form.
    """

    def __init__(self, policy: ExitPolicy, device: torch.device) -> None:
        self.policy, self.device = policy, device
        self.dtype = decision_dtype(device)
        self.has_score = False

    def start(self, samples: int) -> Any:
        return self.policy.start(samples, self.policy.num_exits, self.device)

    def step(
        self, exit_number: int, signals: ExitSignals, memory: Any, out: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        exits, memory = self.policy.checked_step(exit_number, signals, memory)
        score = self.policy.score(memory)
        self.has_score = score is not None
        shown = torch.zeros_like(exits, dtype=self.dtype) if score is None else score
        numbers = [exits[:, None], shown[:, None], self.policy.output(exit_number, signals, memory)]
        results = torch.cat([number.to(self.dtype) for number in numbers], 1)
        if out is not None:
            out.copy_(results, non_blocking=True)
        return results, memory


class PolicyKernel(Decider):
    """
    The steps of a policy, bound and calibrated, at all exits of a network: `step`, `output` and `score` of each exit in
    one kernel launch for any number of samples, in float64. The kernels are generated from a trace of the policy's own
    methods, so that every policy made of supported tensor operations has one, a user's included. An operation without
    translation raises `UnsupportedStep`, as without Triton: the policy is then stepped with torch operations.

    The memory is the policy's state, `(samples, width)` float64. The policy's numbers are copied: a policy that is
    calibrated or changed needs a new object.
    """

    def __init__(self, policy: ExitPolicy, device: torch.device) -> None:
        super().__init__(policy, device)
        if triton is None:
            raise UnsupportedStep("Triton is not installed")
        if policy.num_labels > MAX_LABELS:
            raise UnsupportedStep(f"{policy.num_labels} labels")
        self.num_labels = policy.num_labels
        self.padded_labels = max(2, power_of_two(self.num_labels))
        self.input_names = ["logits", *(f"signal_{name}" for name in policy.required_signals)]
        self.layout = StateLayout(self.num_labels)
        samples = traced_samples(self.num_labels)
        state = policy.start(samples, policy.num_exits, "cpu")
        self.layout.add(state)
        traces: dict[int, TracedStep] = {}
        for exit_number in range(1, policy.num_exits + 1):
            if exit_number < policy.num_exits and not (policy.can_leave(exit_number) or policy.needs(exit_number)):
                continue
            generator = torch.Generator().manual_seed(exit_number)
            example = {"logits": torch.randn(samples, self.num_labels, generator=generator)}
            example |= {name: torch.rand(samples, generator=generator) for name in policy.required_signals}
            traces[exit_number] = trace_step(policy, exit_number, state, example, signals_of)
            state = traces[exit_number].after
            self.layout.add(state)
        self.has_score = traces[policy.num_exits].has_score
        self.sources = {number: self._translate(traced) for number, traced in traces.items()}
        self.numbers = {
            number: torch.tensor([*source.numbers, 0.0], dtype=torch.float64, device=device)
            for number, source in self.sources.items()
        }
        header = HEADER.format(inputs="".join(f"{name}, " for name in self.input_names))
        self.kernels = {
            number: compile_source(header + "".join(f"    {line}\n" for line in source.lines))
            for number, source in self.sources.items()
        }

    def start(self, samples: int) -> Tensor:
        """`(samples, width)` float64 on the device: the state before exit 1."""
        state = self.policy.start(samples, self.policy.num_exits, "cpu")
        buffer = torch.zeros(samples, self.layout.width, dtype=torch.float64)
        for name, tensor in state.tensors.items():
            first, count, _ = self.layout.places[name]
            buffer[:, first : first + count] = tensor.reshape(samples, -1).to(torch.float64)
        return buffer.to(self.device)

    def step(
        self, exit_number: int, signals: ExitSignals, memory: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`out` is on the device or in pinned memory; one sample's `ClassifierSignals` are computed in the kernel."""
        samples = len(signals)
        if out is None:
            out = torch.empty(samples, 2 + self.num_labels, dtype=torch.float64, device=self.device)
        classifier = None
        if isinstance(signals, ClassifierSignals) and self.takes_classifier(*signals.vectors.shape):
            classifier = signals.classifier
            inputs = signals.vectors.contiguous()
        else:
            inputs = signals.logits.contiguous()
        new_memory = torch.empty_like(memory)
        block = 1 if samples == 1 else BLOCK
        self.kernels[exit_number][(-(-samples // block),)](
            inputs,
            *(signals.extra[name].contiguous() for name in self.policy.required_signals),
            memory,
            new_memory,
            self.numbers[exit_number],
            out,
            *((inputs, inputs) if classifier is None else (classifier.weight, classifier.bias)),
            samples,
            self.num_labels,
            inputs.shape[1],
            WIDTH=max(1, self.layout.width),
            BLOCK=block,
            LABELS=self.padded_labels,
            SIZE=0 if classifier is None else power_of_two(inputs.shape[1]),
            num_warps=4 if classifier is not None else 1 if block == 1 else 2,
        )
        return out, new_memory

    def takes_classifier(self, samples: int, size: int) -> bool:
        """Whether the kernel can compute a classifier of vectors of this size for so many samples."""
        return samples == 1 and self.num_labels > 1 and self.padded_labels * power_of_two(size) <= MAX_CLASSIFIER

    def _translate(self, traced: TracedStep) -> StepSource:
        translator = Translator(self.num_labels)
        per_label = self.num_labels > 1
        inputs = [(Value("all_logits", per_label, "float"), "logits_" if per_label else "tl.sum(logits_, axis=1)")]
        for name in self.input_names[1:]:
            inputs.append((Value(f"{name}_", False, "float"), f"{load(name, 'sample', False)}.to(tl.float64)"))
        inputs += [(self.layout.value(name), self.layout.load(name)) for name in traced.before.tensors]
        leaves, score, output, *tensors = translator.run(traced.module, inputs)
        target = "out + sample * (2 + num_labels)"
        wide_target = "out + sample[:, None] * (2 + num_labels) + 2 + column[None, :]"
        translator.source.lines += [
            store(target, leaves),
            store(f"{target} + 1", Value("0.0", False, "float") if score is None else score),
            store(wide_target if output.per_label else f"{target} + 2", output),
            *(
                self.layout.store(name, value, "new_state")
                for name, value in zip(traced.after.tensors, tensors, strict=True)
            ),
        ]
        return translator.source


def signals_of(given: dict[str, Tensor]) -> ExitSignals:
    return ExitSignals(given["logits"], {name: value for name, value in given.items() if name != "logits"})


def make_decider(policy: ExitPolicy, device: torch.device, with_kernel: bool) -> Decider:
    operations = Decider(policy, device)
    if not with_kernel:
        return operations
    try:
        found = PolicyKernel(policy, device)
        # Triton compiles at the first launch, which needs a C compiler that not every machine has.
        logits = torch.zeros(1, policy.num_labels, device=device)
        extra = {name: torch.zeros(1, device=device) for name in policy.required_signals}
        for exit_number in found.kernels:
            found.step(exit_number, ExitSignals(logits, extra), found.start(1))
        return found
    except UnsupportedStep as reason:
        logger.info("the exit policy runs in torch operations: %s", reason)
    except Exception as error:  # Triton and its compiler raise errors of many types
        logger.warning("the exit policy runs in torch operations: %s: %s", type(error).__name__, first_line(error))
    return operations
