"""The step of a policy for many samples: in a kernel generated from the policy, or in torch operations."""

import logging
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.execution.compiled.policy_kernel import PolicyKernel
from beem_plugin.execution.compiled.step_values import UnsupportedStep
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals, decision_dtype

logger = logging.getLogger(__name__)


class ClassifierSignals(ExitSignals):
    """
    Signals of a linear classifier that has not run yet. A kernel can compute the logits; otherwise they are computed
    when they are read.
    """

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
        exits, memory = self.policy.step(exit_number, signals, memory)
        score = self.policy.score(memory)
        self.has_score = score is not None
        shown = torch.zeros_like(exits, dtype=self.dtype) if score is None else score
        numbers = [exits[:, None], shown[:, None], self.policy.output(exit_number, signals, memory)]
        results = torch.cat([number.to(self.dtype) for number in numbers], 1)
        if out is not None:
            out.copy_(results, non_blocking=True)
        return results, memory


class KernelDecider(Decider):
    """Launches a generated kernel."""

    def __init__(self, kernel: PolicyKernel, device: torch.device) -> None:
        super().__init__(kernel.policy, device)
        self.kernel, self.has_score = kernel, kernel.has_score

    def start(self, samples: int) -> Any:
        return self.kernel.start(samples)

    def step(
        self, exit_number: int, signals: ExitSignals, memory: Any, out: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        if out is None:
            columns = 2 + self.kernel.num_labels
            out = torch.empty(len(signals), columns, dtype=torch.float64, device=self.device)
        inputs, classifier = None, None
        if isinstance(signals, ClassifierSignals) and self.kernel.takes_classifier(*signals.vectors.shape):
            linear = signals.classifier
            inputs, classifier = signals.vectors, (linear.weight, linear.bias)
        inputs = signals.logits if inputs is None else inputs
        return out, self.kernel(
            exit_number, inputs.contiguous(), memory, out, extra=signals.extra, classifier=classifier
        )


def make_decider(policy: ExitPolicy, device: torch.device, with_kernel: bool) -> Decider:
    operations = Decider(policy, device)
    if not with_kernel:
        return operations
    try:
        found = KernelDecider(PolicyKernel(policy, device), device)
        # Triton compiles at the first launch, which needs a C compiler that not every machine has.
        logits = torch.zeros(1, policy.num_labels, device=device)
        extra = {name: torch.zeros(1, device=device) for name in policy.required_signals}
        for exit_number in found.kernel.kernels:
            found.step(exit_number, ExitSignals(logits, extra), found.start(1))
        return found
    except UnsupportedStep as reason:
        logger.info("the exit policy runs in torch operations: %s", reason)
    except Exception as error:  # Triton and its compiler raise errors of many types
        first_line = (str(error).strip().splitlines() or [""])[0]
        logger.warning("the exit policy runs in torch operations: %s: %s", type(error).__name__, first_line)
    return operations
