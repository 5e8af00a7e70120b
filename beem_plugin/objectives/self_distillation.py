"""The last exit teaches the others; labels are not needed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.objectives.divergence import DIRECTIONS, softened_divergence
from beem_plugin.objectives.exit_loss import mean_exit_losses
from beem_plugin.objectives.exit_weights import REDUCTIONS
from beem_plugin.objectives.objective import Objective, check_choice, check_number


@Objective.register("self_distillation")
class SelfDistillation(Objective):
    """
    FastBERT's second stage (Liu et al. 2020, section 3.2.2, Eq. 6-7): with p_L detached,

        loss = sum_{i<L} KL(p_L || p_i),

    the mean over all samples, with or without a label. Eq. 6 prints KL(p_i || p_L); the default is the release's
    direction. An early exit becomes at best as good as the last one, which must be trained first.

    Registered as an `Objective` with name "self_distillation".

    # Parameters

    direction : `str`, optional (default = `"teacher_student"`)
        `"teacher_student"`: KL(p_L || p_i), the release; `"student_teacher"`: KL(p_i || p_L), the paper's Eq. 6;
        `"symmetric"`: half of each.
    temperature : `float`, optional (default = `1.0`)
        Both distributions are softened by it, and the KL multiplied by its square.
    reduction : `str`, optional (default = `"sum"`)
        Over the exits before the last.
    cross_entropy_weight : `float`, optional (default = `0.0`)
        The weight of the same exits' cross-entropy over the samples with a label: the usual mix of hard and soft
        targets; FastBERT has none.
    """

    def __init__(
        self,
        direction: str = "teacher_student",
        temperature: float = 1.0,
        reduction: str = "sum",
        cross_entropy_weight: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("direction", direction, DIRECTIONS)
        check_number("temperature", temperature, open_low=True)
        check_choice("reduction", reduction, REDUCTIONS)
        check_number("cross_entropy_weight", cross_entropy_weight)
        self.direction = direction
        self.temperature = temperature
        self.reduction = reduction
        self.cross_entropy_weight = cross_entropy_weight

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        check_has_students(len(exit_layers))

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        check_has_students(logits.shape[1])
        student, teacher = logits[:, :-1], logits[:, -1:].detach()
        # A mean over all samples, with or without label: (exits - 1,)
        divergence = softened_divergence(student, teacher, self.temperature, self.direction).mean(0)
        cross_entropy = mean_exit_losses(logits[:, :-1], label)
        terms = divergence
        if self.cross_entropy_weight > 0:
            terms = terms + self.cross_entropy_weight * cross_entropy
        return {
            "loss": terms.mean() if self.reduction == "mean" else terms.sum(),
            "divergence": divergence.mean().detach(),
            "cross_entropy": cross_entropy.mean().detach(),
        }


def check_has_students(num_exits: int) -> None:
    """Raises a `ConfigurationError` if there is no exit for the last one to teach."""
    if num_exits < 2:
        raise ConfigurationError(f"objective: exits that teach each other, found {num_exits} exit, allowed: 2 or more")
