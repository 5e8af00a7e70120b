"""The step of a policy for many samples in torch operations."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals, decision_dtype


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
