"""Exits that learn the labels and from the last exit: BEEM's objective, and FastBERT's second stage."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.objectives.exit_loss import (
    DIRECTIONS,
    loss_name,
    mean_exit_losses,
    mean_over_known,
    softened_divergence,
)
from beem_plugin.objectives.exit_weights import REDUCTIONS, Curriculum, WeightedObjective
from beem_plugin.objectives.objective import Objective


@Objective.register("weighted_distillation")
class WeightedDistillation(WeightedObjective):
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

    layer_weights, reduction, curriculum
        See `WeightedObjective`; `"linear"` and `"mean"` by default.
    distillation : `str`, optional (default = `"teacher_student"`)
        `"teacher_student"`: KL(p_L || p_i). `"student_teacher"`: KL(p_i || p_L), as the paper prints it. `"symmetric"`:
        half of each. `"off"`: cross-entropy alone, as PABEE and BEEM's released code.
    distillation_weight : `float`, optional (default = `1.0`)
    temperature : `float`, optional (default = `1.0`)
        Both distributions are softened by it, and the KL multiplied by its square.
    detach_teacher : `bool`, optional (default = `True`)
        Whether the KL has no gradient to the teacher.
    teacher : `str`, optional (default = `"last"`)
        `"last"`: the last exit teaches the others; `"next"`: each exit is taught by the next one.
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
        teacher: str = "last",
        curriculum: Curriculum | None = None,
    ) -> None:
        super().__init__(layer_weights, reduction, curriculum)
        check_choice("distillation", distillation, (*DIRECTIONS, "off"))
        check_choice("teacher", teacher, ("last", "next"))
        check_number("temperature", temperature, open_low=True)
        self.distillation = distillation
        self.distillation_weight = distillation_weight
        self.temperature = temperature
        self.detach_teacher = detach_teacher
        self.teacher = teacher

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        if num_labels == 1 and self.temperature != 1:
            raise ConfigurationError(
                f"objective.temperature: found {self.temperature}, allowed: 1, as values have nothing to soften"
            )

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        logits = logits.float()
        weights = self.exit_weights(logits.shape[1], logits.device)
        # Each a mean over the samples, (exits,)
        losses = mean_exit_losses(logits, label)
        divergence = mean_over_known(self.divergence(logits), label)
        loss = (weights * (losses + self.distillation_weight * divergence)).sum()
        return {
            "loss": loss,
            loss_name(label): (weights * losses).sum().detach(),
            "divergence": (weights * divergence).sum().detach(),
        }

    def divergence(self, logits: Tensor) -> Tensor:
        """`(batch, exits)` the KL term of each exit, or the squared distance from its teacher; 0 for the last."""
        if self.distillation == "off":
            return logits.new_zeros(logits.shape[:2])
        student = logits[:, :-1]
        teacher = logits[:, 1:] if self.teacher == "next" else logits[:, -1:].expand_as(student)
        if self.detach_teacher:
            teacher = teacher.detach()
        return functional.pad(softened_divergence(student, teacher, self.temperature, self.distillation), (0, 1))


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
