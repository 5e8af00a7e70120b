"""The objective of BEEM: every exit learns the labels and the last exit's probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.objectives.cross_entropy import mean_over_known
from beem_plugin.objectives.divergence import DIRECTIONS, distillation_divergence
from beem_plugin.objectives.exit_loss import exit_loss, loss_name, squared_distance
from beem_plugin.objectives.exit_weights import check_exit_weights, exit_weights
from beem_plugin.objectives.objective import Objective

DISTILLATIONS = (*DIRECTIONS, "off")


@Objective.register("weighted_distillation")
class WeightedDistillation(Objective):
    """
    BEEM, section 3.1, Eq. 1-2: with p_i the probabilities of exit i of L,

        loss = sum_i i (CE(p_i, y) + KL_i) / sum_i i,

    KL_i between the probabilities of exit i and of the last exit; the last exit has none. The paper prints
    KL(p_i, p_L); the default is KL(p_L || p_i), the direction in which all related code distils, with p_L detached.

    Without distillation it is the joint training of most methods: PABEE with `"linear"` weights; PCEE-BERT with
    `"linear"`, `"uniform"` or `"descending"`; BranchyNet with a list and `reduction: "sum"`; ElasticBERT with
    `"uniform"` and `reduction: "sum"`, on an encoder with `gradient_equilibrium`; MuE on text with `"uniform"`.

    In a regression, CE is (y_i - y)^2 and KL_i, whatever its direction, (y_i - y_L)^2.

    Registered as an `Objective` with name "weighted_distillation".

    # Parameters

    layer_weights : `str` or `list[float]`, optional (default = `"linear"`)
        `"linear"`: i; `"descending"`: L - i + 1; `"uniform"`: 1; or one number per exit. `"descending_release"`:
        PCEE-BERT's code for `desc`, see `exit_weights`.
    distillation : `str`, optional (default = `"teacher_student"`)
        `"teacher_student"`: KL(p_L || p_i). `"student_teacher"`: KL(p_i || p_L), as the paper prints it. `"symmetric"`:
        half of each. `"off"`: cross-entropy alone, as PABEE and BEEM's released code.
    distillation_weight : `float`, optional (default = `1.0`)
    temperature : `float`, optional (default = `1.0`)
        Both distributions are softened by it, and the KL multiplied by its square.
    detach_teacher : `bool`, optional (default = `True`)
        Whether the KL has no gradient to the last exit.
    reduction : `str`, optional (default = `"mean"`)
        `"mean"`: the weights are divided by their sum; `"sum"`: as they are.
    """

    serves_regression = True

    def __init__(
        self,
        layer_weights: str | list = "linear",
        distillation: str = "teacher_student",
        distillation_weight: float = 1.0,
        temperature: float = 1.0,
        detach_teacher: bool = True,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        check_exit_weights(layer_weights, reduction)
        if distillation not in DISTILLATIONS:
            raise ConfigurationError(not_allowed("objective.distillation", distillation, DISTILLATIONS))
        if temperature <= 0:
            raise ConfigurationError(f"objective.temperature: found {temperature}, allowed: above 0")
        self.layer_weights = layer_weights
        self.distillation = distillation
        self.distillation_weight = distillation_weight
        self.temperature = temperature
        self.detach_teacher = detach_teacher
        self.reduction = reduction

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        if num_labels == 1 and self.temperature != 1:
            raise ConfigurationError(
                f"objective.temperature: found {self.temperature}, allowed: 1, as values have nothing to soften"
            )
        self.exit_weights(len(exit_layers), torch.device("cpu"))

    def exit_weights(self, num_exits: int, device: torch.device) -> Tensor:
        """`(exits,)`, summing to 1 with reduction `"mean"`."""
        return exit_weights(self.layer_weights, num_exits, device, self.reduction)

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        logits = logits.float()
        weights = self.exit_weights(logits.shape[1], logits.device)
        # Each a mean over the samples, (exits,)
        losses = mean_over_known(exit_loss(logits, label), label)
        divergence = mean_over_known(self.divergence(logits), label)
        loss = (weights * (losses + self.distillation_weight * divergence)).sum()
        return {
            "loss": loss,
            loss_name(label): (weights * losses).sum().detach(),
            "divergence": (weights * divergence).sum().detach(),
        }

    def divergence(self, logits: Tensor) -> Tensor:
        """`(batch, exits)` the KL term of each exit, or the squared distance from the last; 0 for the last."""
        if self.distillation == "off":
            return logits.new_zeros(logits.shape[:2])
        if logits.shape[-1] == 1:
            last = logits[:, -1:].detach() if self.detach_teacher else logits[:, -1:]
            return functional.pad(squared_distance(logits[:, :-1], last), (0, 1))
        log_p = (logits / self.temperature).log_softmax(-1)
        student = log_p[:, :-1]
        teacher = log_p[:, -1:].expand_as(student)
        if self.detach_teacher:
            teacher = teacher.detach()
        value = distillation_divergence(student, teacher, self.distillation)
        return functional.pad(value * self.temperature**2, (0, 1))
