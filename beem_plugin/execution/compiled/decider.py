"""The step of a policy for many samples: in a kernel generated from the policy, or in torch operations."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from beem_plugin.execution.compiled.policy_kernel import PolicyKernel
from beem_plugin.execution.compiled.step_source import UnsupportedStep
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals, decision_dtype
from beem_plugin.exits.state import ExitState

logger = logging.getLogger(__name__)


class ClassifierSignals(ExitSignals):
    """
    Signals of a linear classifier that has not run yet. A kernel can compute the logits; otherwise they are computed
    when they are read.

    # Parameters

    vectors : `Tensor`
        `(samples, size)`, the input of the classifier.
    classifier : `torch.nn.Linear`
    """

    def __init__(self, vectors: Tensor, classifier: torch.nn.Linear) -> None:
        self.vectors, self.classifier = vectors, classifier
        self.extra = {}

    def __len__(self) -> int:
        return len(self.vectors)

    @cached_property
    def logits(self) -> Tensor:  # type: ignore[override]
        return self.classifier(self.vectors).float()


class Decider(Protocol):
    """
    Steps a policy. A result is a row of `2 + labels` numbers in the decision precision: 1 for a sample that exits and 0
    for others, the score (0 for a policy without), and the output. The memory is the policy's state in any form.
    """

    has_score: bool

    def start(self, samples: int) -> Any: ...

    def step(
        self, exit_number: int, signals: ExitSignals, memory: Any, out: Tensor | None = None
    ) -> tuple[Tensor, Any]: ...


class OperationDecider:
    """
    Calls the policy's own methods.

    # Parameters

    policy : `ExitPolicy`
        Bound and calibrated.
    device : `torch.device`
    """

    def __init__(self, policy: ExitPolicy, device: torch.device) -> None:
        self.policy, self.device = policy, device
        self.dtype = decision_dtype(device)
        self.has_score = False

    def start(self, samples: int) -> ExitState:
        return self.policy.start(samples, self.policy.num_exits, self.device)

    def step(
        self, exit_number: int, signals: ExitSignals, memory: ExitState, out: Tensor | None = None
    ) -> tuple[Tensor, ExitState]:
        """
        # Parameters

        exit_number : `int`
        signals : `ExitSignals`
        memory : `ExitState`
            As `start` or the last step returned it.
        out : `Tensor`, optional
            `(samples, 2 + labels)` on the device or in pinned memory, for the results.
        """
        exits, memory = self.policy.step(exit_number, signals, memory)
        score = self.policy.score(memory)
        self.has_score = score is not None
        shown = torch.zeros_like(exits, dtype=self.dtype) if score is None else score
        numbers = [exits[:, None], shown[:, None], self.policy.output(exit_number, signals, memory)]
        results = torch.cat([number.to(self.dtype) for number in numbers], 1)
        if out is not None:
            out.copy_(results, non_blocking=True)
        return results, memory


class KernelDecider:
    """
    Launches a generated kernel.

    # Parameters

    kernel : `PolicyKernel`
    device : `torch.device`
    """

    def __init__(self, kernel: PolicyKernel, device: torch.device) -> None:
        self.kernel, self.device = kernel, device
        self.has_score = kernel.has_score

    def start(self, samples: int) -> Tensor:
        return self.kernel.start(samples)

    def step(
        self, exit_number: int, signals: ExitSignals, memory: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
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
    """
    # Parameters

    policy : `ExitPolicy`
        Bound and calibrated.
    device : `torch.device`
    with_kernel : `bool`
        Whether to use a kernel where the policy and the machine allow it.
    """
    operations = OperationDecider(policy, device)
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
