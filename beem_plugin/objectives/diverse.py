"""Exits that learn the labels and to differ from earlier exits."""

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import check_choice, check_number
from beem_plugin.objectives.exit_loss import mean_exit_losses, mean_over_known, pairwise_cross_entropy, pairwise_kl
from beem_plugin.objectives.exit_weights import Curriculum, WeightedObjective
from beem_plugin.objectives.objective import Objective


@Objective.register("diverse")
class Diverse(WeightedObjective):
    """
    EEIC, early exiting as an ensemble of internal classifiers (Sun et al. 2021; no public code):

        loss = sum_i w_i (CE(p_i, y) - weight * D_i),    D_i = min_{j<i} CE(p_j, p_i),    D_1 = 0,

    with CE(p_j, p_i) = -sum_c p_j(c) ln p_i(c) and p_j detached: an exit is rewarded for differing from the earlier
    exit that is most similar. The sign is such that minimising the loss increases disagreement. This practical form is
    known from descriptions only; the paper derives its term from mutual information.

    Registered as an `Objective` with name "diverse".

    # Parameters

    weight : `float`, optional (default = `0.1`)
        Below 1, so that the label dominates where an earlier exit is right.
    measure : `str`, optional (default = `"cross_entropy"`)
        `"kl"`: KL(p_j || p_i), which has the same gradient for p_i but another nearest exit.
    layer_weights, reduction, curriculum
        See `WeightedObjective`; `"uniform"` and `"sum"` by default.
    detach_earlier : `bool`, optional (default = `True`)
        With `false` the earlier exit gets a gradient as well.
    """

    def __init__(
        self,
        weight: float = 0.1,
        measure: str = "cross_entropy",
        layer_weights: str | list[float] = "uniform",
        reduction: str = "sum",
        detach_earlier: bool = True,
        curriculum: Curriculum | None = None,
    ) -> None:
        super().__init__(layer_weights, reduction, curriculum)
        check_number("weight", weight, high=1, open_high=True)
        check_choice("measure", measure, ("cross_entropy", "kl"))
        self.weight = weight
        self.measure = measure
        self.detach_earlier = detach_earlier

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        weights = self.exit_weights(logits.shape[1], logits.device)
        cross_entropy = mean_exit_losses(logits, label)  # (exits,)
        diversity = mean_over_known(self.diversity(logits), label)
        return {
            "loss": (weights * (cross_entropy - self.weight * diversity)).sum(),
            "cross_entropy": (weights * cross_entropy).sum().detach(),
            "diversity": (weights * diversity).sum().detach(),
        }

    def diversity(self, logits: Tensor) -> Tensor:
        """`(batch, exits)` D_i."""
        log_p = logits.float().log_softmax(-1)
        number = torch.arange(logits.shape[1], device=logits.device)
        earlier = log_p.detach() if self.detach_earlier else log_p
        # (batch, later exit, earlier exit)
        distance = (pairwise_kl if self.measure == "kl" else pairwise_cross_entropy)(earlier, log_p)
        distance = distance.masked_fill(number.unsqueeze(0) >= number.unsqueeze(1), torch.inf)
        return functional.pad(distance[:, 1:].amin(-1), (1, 0))
