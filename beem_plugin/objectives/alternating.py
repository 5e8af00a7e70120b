"""Alternating training of the last exit and of all exits."""

from __future__ import annotations

from torch import Tensor

from beem_plugin.objectives.cross_entropy import mean_over_known
from beem_plugin.objectives.exit_loss import exit_loss
from beem_plugin.objectives.objective import Objective


@Objective.register("alternating")
class Alternating(Objective):
    """
    BERxiT's alternating fine-tuning (Xin et al. 2021, section 3.2): with steps counted from 0,

        loss = CE(p_L, y)                     in even steps,
        loss = sum_{i<=L} CE(p_i, y)          in odd steps.

    Steps are optimizer steps from the beginning of training. The release counts batches within an epoch, so that with
    gradient accumulation both losses mix in one step and an epoch with an odd number of batches repeats a phase; this
    is not reproduced. In evaluation the loss is that of odd steps.

    In a regression CE is (y_i - y)^2. BERxiT is this objective inside `learned_exit`.

    Registered as an `Objective` with name "alternating".

    # Parameters

    include_final_on_odd : `bool`, optional (default = `True`)
        Whether the sum of odd steps goes up to L, as in the paper and in the release's `alternate`; `false` excludes
        the last exit, as in the release's `alternate-lte`.
    """

    serves_regression = True

    def __init__(self, include_final_on_odd: bool = True) -> None:
        super().__init__()
        self.include_final_on_odd = include_final_on_odd

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        losses = mean_over_known(exit_loss(logits, label), label)  # (exits,)
        final, early = losses[-1], losses[:-1].sum()
        if self.training and self.progress[0] % 2 == 0:
            loss = final
        else:
            loss = early + final if self.include_final_on_odd else early
        return {"loss": loss, "final_exit": final.detach(), "early_exits": early.detach()}
