"""The objective of BEEM: every exit learns the labels and the last exit's probabilities."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.objectives.objective import Objective

DISTILLATIONS = ("teacher_student", "student_teacher", "symmetric", "off")
WEIGHTINGS = ("linear", "uniform")


@Objective.register("weighted_distillation")
class WeightedDistillation(Objective):
    """
    BEEM, section 3.1, Eq. 1-2: with p_i the probabilities of exit i of L,

        loss = sum_i i (CE(p_i, y) + KL_i) / sum_i i,

    KL_i between the probabilities of exit i and of the last exit; the last exit has none. The paper prints
    KL(p_i, p_L); the default is KL(p_L || p_i), the direction in which all related code distils, with p_L detached.

    Registered as an `Objective` with name "weighted_distillation".

    # Parameters

    layer_weights : `str` or `list[float]`, optional (default = `"linear"`)
        `"linear"`: i; `"uniform"`: 1; or one number an exit. They are divided by their sum.
    distillation : `str`, optional (default = `"teacher_student"`)
        `"teacher_student"`: KL(p_L || p_i). `"student_teacher"`: KL(p_i || p_L), as the paper prints it. `"symmetric"`:
        half of each. `"off"`: cross-entropy alone, as PABEE and BEEM's released code.
    distillation_weight : `float`, optional (default = `1.0`)
    temperature : `float`, optional (default = `1.0`)
        Both distributions are softened by it, and the KL multiplied by its square.
    detach_teacher : `bool`, optional (default = `True`)
        Whether the KL leaves the last exit alone.
    """

    def __init__(
        self,
        layer_weights: str | list = "linear",
        distillation: str = "teacher_student",
        distillation_weight: float = 1.0,
        temperature: float = 1.0,
        detach_teacher: bool = True,
    ) -> None:
        super().__init__()
        if isinstance(layer_weights, str) and layer_weights not in WEIGHTINGS:
            raise ConfigurationError(not_allowed("objective.layer_weights", layer_weights, WEIGHTINGS))
        if not isinstance(layer_weights, str) and (
            not layer_weights or min(layer_weights) < 0 or not any(layer_weights)
        ):
            raise ConfigurationError(
                f"objective.layer_weights: found {layer_weights}, allowed: numbers from 0, not all of them 0"
            )
        if distillation not in DISTILLATIONS:
            raise ConfigurationError(not_allowed("objective.distillation", distillation, DISTILLATIONS))
        if temperature <= 0:
            raise ConfigurationError(f"objective.temperature: found {temperature}, allowed: above 0")
        self.layer_weights = layer_weights
        self.distillation = distillation
        self.distillation_weight = distillation_weight
        self.temperature = temperature
        self.detach_teacher = detach_teacher

    def exit_weights(self, num_exits: int, device: torch.device) -> Tensor:
        """`(exits,)`, summing to 1."""
        if self.layer_weights == "linear":
            values = torch.arange(1, num_exits + 1, dtype=torch.float32, device=device)
        elif self.layer_weights == "uniform":
            values = torch.ones(num_exits, device=device)
        else:
            if len(self.layer_weights) != num_exits:
                raise ConfigurationError(
                    f"objective.layer_weights: found {len(self.layer_weights)} numbers, allowed: {num_exits}"
                )
            values = torch.tensor(self.layer_weights, dtype=torch.float32, device=device)
        return values / values.sum()

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        logits = logits.float()
        samples, num_exits, num_labels = logits.shape
        weights = self.exit_weights(num_exits, logits.device)
        known = label >= 0
        counted = known.sum().clamp_min(1)
        target = label.clamp_min(0).unsqueeze(1).expand(samples, num_exits)
        # (batch, exits)
        cross_entropy = functional.cross_entropy(logits.reshape(-1, num_labels), target.reshape(-1), reduction="none")
        cross_entropy = cross_entropy.reshape(samples, num_exits)
        divergence = self.divergence(logits)
        # A mean over the samples for each exit, (exits,)
        cross_entropy = (cross_entropy * known.unsqueeze(1)).sum(0) / counted
        divergence = (divergence * known.unsqueeze(1)).sum(0) / counted
        loss = (weights * (cross_entropy + self.distillation_weight * divergence)).sum()
        return {
            "loss": loss,
            "cross_entropy": (weights * cross_entropy).sum().detach(),
            "divergence": (weights * divergence).sum().detach(),
        }

    def divergence(self, logits: Tensor) -> Tensor:
        """`(batch, exits)` the KL term of each exit; 0 for the last."""
        if self.distillation == "off":
            return logits.new_zeros(logits.shape[:2])
        log_p = (logits / self.temperature).log_softmax(-1)
        student = log_p[:, :-1]
        teacher = log_p[:, -1:].expand_as(student)
        if self.detach_teacher:
            teacher = teacher.detach()
        teacher_student = (teacher.exp() * (teacher - student)).sum(-1)
        student_teacher = (student.exp() * (student - teacher)).sum(-1)
        value = {
            "teacher_student": teacher_student,
            "student_teacher": student_teacher,
            "symmetric": (teacher_student + student_teacher) / 2,
        }[self.distillation]
        return functional.pad(value * self.temperature**2, (0, 1))
