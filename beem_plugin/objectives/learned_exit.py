"""Learns to predict the errors of exits, beside the objective that trains them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives.alternating import Alternating
from beem_plugin.objectives.cross_entropy import mean_over_known
from beem_plugin.objectives.exit_loss import exit_error
from beem_plugin.objectives.exit_weights import REDUCTIONS
from beem_plugin.objectives.objective import Objective


@Objective.register("learned_exit")
class LearnedExit(Objective):
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

    serves_regression = True  # where `objective` does

    def __init__(self, objective: Objective | None = None, weight: float = 1.0, reduction: str = "mean") -> None:
        super().__init__()
        if weight < 0:
            raise ConfigurationError(f"objective.weight: found {weight}, allowed: 0 or more")
        if reduction not in REDUCTIONS:
            raise ConfigurationError(not_allowed("objective.reduction", reduction, REDUCTIONS))
        self.objective = objective if objective is not None else Alternating()
        self.weight = weight
        self.reduction = reduction
        self.required_signals = tuple(dict.fromkeys((*self.objective.required_signals, "predicted_error")))

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        self.objective.bind(exit_layers, num_labels)

    def start_step(self, step: int, total_steps: int) -> None:
        self.objective.start_step(step, total_steps)

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        inner = self.objective.loss(outputs, label)
        wrong = exit_error(outputs.logits, label)  # (batch, exits)
        error = mean_over_known((outputs.signals["predicted_error"].float() - wrong) ** 2, label)
        error = error.mean() if self.reduction == "mean" else error.sum()
        return {**inner, "loss": inner["loss"] + self.weight * error, "predicted_error": error.detach()}
