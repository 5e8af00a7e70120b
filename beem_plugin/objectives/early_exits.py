"""All exits but the last: the second stage of a fine-tuned network."""

from __future__ import annotations

from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.objectives.cross_entropy import mean_over_known
from beem_plugin.objectives.curriculum import Curriculum
from beem_plugin.objectives.exit_loss import exit_loss
from beem_plugin.objectives.exit_weights import WeightedObjective
from beem_plugin.objectives.objective import Objective


@Objective.register("early_exits")
class EarlyExits(WeightedObjective):
    """
    The labels, for the exits before the last,

        loss = sum_{i<L} w_i CE(p_i, y):

    the sum, as DeeBERT's second stage (Xin et al. 2020, section 2.2), or the mean, as the heads of ZTW (Wolczyk et
    al. 2021); in a regression CE is (y_i - y)^2. It freezes no parameter: a stage lists those in
    `no_grad`. DeeBERT's release lets the gradient run through the whole backbone in this stage and
    clips it by a norm that counts the backbone in, which shrinks the exits' part; that is not reproduced.

    Registered as an `Objective` with name "early_exits".

    # Parameters

    reduction : `str`, optional (default = `"sum"`)
        `"sum"`: the weights as they are; `"mean"`: divided by their sum.
    layer_weights : `str` or `list[float]`, optional (default = `"uniform"`)
        `"uniform"`, `"linear"`, `"descending"`, `"descending_release"`, or one number for each exit included.
    include_last : `bool`, optional (default = `False`)
        Whether to include the last exit.
    curriculum : `Curriculum`, optional (default = `None`)
        Which exits are trained in a step, such as `{"type": "rotational"}`.
    """

    serves_regression = True

    def __init__(
        self,
        reduction: str = "sum",
        layer_weights: str | list[float] = "uniform",
        include_last: bool = False,
        curriculum: Curriculum | None = None,
    ) -> None:
        super().__init__(layer_weights, reduction, curriculum)
        self.include_last = include_last

    def num_weights(self, num_exits: int) -> int:
        if num_exits == 1 and not self.include_last:
            raise ConfigurationError(
                "objective.include_last: found false and 1 exit, allowed: true, or 2 exits or more"
            )
        return num_exits if self.include_last else num_exits - 1

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        weights = self.exit_weights(logits.shape[1], logits.device)
        losses = mean_over_known(exit_loss(logits[:, : len(weights)], label), label)
        return {"loss": (weights * losses).sum()}
