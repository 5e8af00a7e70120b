"""BEEM: exits as experts whose weighted confidences add up while they agree."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.exits.exit_weights import ExitWeights, as_weights
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.threshold_strategy import Thresholds
from beem_plugin.exits.trace_interface import Trace


@ExitPolicy.register("beem")
class Beem(ThresholdPolicy):
    """
    BEEM (Bajpai and Hanawal, ICLR 2025, section 3.2). Exit i predicts label y_i with confidence C_i, its largest
    probability. The score starts at S_1 = w_1 C_1; then

        S_i = S_{i-1} + w_i C_i  if y_i = y_{i-1},  else  w_i C_i,

    and a sample exits at the first exit with S_i >= alpha_i.

    Registered as an `ExitPolicy` with name "beem".

    # Parameters

    weights : `ExitWeights` or `str` or `list[float]`, optional (default = `"accuracy"`)
        `"cost"` is BEEM-C, `"accuracy"` BEEM-A; a list gives one weight per exit.
    thresholds, min_exit
        See `ThresholdPolicy`; the default of `thresholds` is the strategy `"error_rate"`.
    on_disagreement : `str`, optional (default = `"restart"`)
        The score when the label changes: `"restart"`, w_i C_i as in the paper; `"zero"`, as in the released code.
    """

    fitted: ClassVar[str | None] = "weights"
    default_thresholds: ClassVar[Thresholds | None] = "error_rate"
    published_grids: ClassVar[Mapping[str, Sequence[Any]]] = {
        "error_rate": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, "never"),
        "best_on_validation": (0.3, 0.6, 0.9, 1.2, 1.5),
    }

    def __init__(
        self,
        weights: ExitWeights | str | list | None = None,
        thresholds: Thresholds | None = None,
        on_disagreement: str = "restart",
        min_exit: int = 1,
    ) -> None:
        super().__init__(thresholds, min_exit)
        check_choice("on_disagreement", on_disagreement, ("restart", "zero"))
        self.weighting = as_weights(weights)
        self.on_disagreement = on_disagreement
        self.weights: list[float] | None = None

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        if not self.weighting.needs_calibration:
            self.weights = self.weighting.resolve(self.exit_layers)
        elif self.weights is not None and len(self.weights) != self.num_exits:
            raise ConfigurationError(
                f"the policy's weights were calibrated for {len(self.weights)} exits, "
                f"found a network of {self.num_exits}"
            )

    def fit_parameters(self, trace: Trace) -> None:
        self.weights = self.weighting.fit(trace)

    def report_weights(self) -> list[float] | None:
        return self.weights

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        assert self.weights is not None, "bound and calibrated before use"
        vote = self.weights[exit_number - 1] * signals.confidence
        prediction = signals.prediction
        if exit_number == 1:
            return ExitState(prediction=prediction, score=vote)
        changed = vote if self.on_disagreement == "restart" else torch.zeros_like(vote)
        score = torch.where(prediction == state["prediction"], state["score"] + vote, changed)
        return ExitState(prediction=prediction, score=score)

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        if self.weights is None:
            return None
        # The largest score: all exits so far agree with probability 1. A margin, as sums are rounded.
        return 0.0, sum(self.weights[:exit_number]) * (1 + 1e-9)
