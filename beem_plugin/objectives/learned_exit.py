"""Learns to predict the errors of exits, beside the objective that trains them."""

from torch import Tensor

from beem_plugin.common.errors import check_choice
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives.exit_loss import exit_error, mean_over_known
from beem_plugin.objectives.exit_sums import Alternating
from beem_plugin.objectives.exit_weights import REDUCTIONS
from beem_plugin.objectives.objective import ExtendedObjective, Objective


@Objective.register("learned_exit")
class LearnedExit(ExtendedObjective):
    """
    BERxiT's learning to exit (Xin et al. 2021, section 3.4): with u_i, in (0, 1), the module's predicted probability
    that exit i is wrong,

        loss = loss of `objective` + weight * mean_i (u_i - [argmax p_i != y])^2,

    over all exits; in a regression |tanh(y_i - y)| replaces [argmax p_i != y].
    Whether an exit is wrong has no gradient; u_i's own reaches the pooled vector and so the backbone, as in the
    release, unless the encoder's `predicted_error` detaches it.

    Registered as an `Objective` with name "learned_exit".

    # Parameters

    objective : `Objective`, optional (default = `"alternating"`)
        The objective of the exits. `{"type": "alternating"}`: BERxiT as published.
        `{"type": "alternating", "include_final_on_odd": false}`: the release's `alternate-lte`.
        `{"type": "early_exits"}` and the like: the module in a second stage.
    weight : `float`, optional (default = `1.0`)
    reduction : `str`, optional (default = `"mean"`)
        Over the exits; `"sum"`: the sum.
    """

    required_signals = ("predicted_error",)

    def __init__(self, objective: Objective | None = None, weight: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(objective if objective is not None else Alternating(), weight)
        check_choice("reduction", reduction, REDUCTIONS)
        self.reduction = reduction

    def term(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        wrong = exit_error(outputs.logits, label)  # (batch, exits)
        error = mean_over_known((outputs.signals["predicted_error"].float() - wrong) ** 2, label)
        return {"predicted_error": error.mean() if self.reduction == "mean" else error.sum()}
