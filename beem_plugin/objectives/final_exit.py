"""The network without early exits."""

from __future__ import annotations

from torch import Tensor

from beem_plugin.objectives.cross_entropy import mean_over_known
from beem_plugin.objectives.exit_loss import exit_loss
from beem_plugin.objectives.objective import Objective


@Objective.register("final_exit")
class FinalExit(Objective):
    """
    Ordinary fine-tuning,

        loss = CE(p_L, y),

    with p_L the probabilities of the last exit: the first stage of DeeBERT, FastBERT, ZTW and JEI-DNN, and of a network
    with fewer layers; in a regression (y_L - y)^2. The other exits get no gradient.

    Registered as an `Objective` with name "final_exit".
    """

    serves_regression = True

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        return {"loss": mean_over_known(exit_loss(logits[:, -1:], label), label).squeeze(0)}
