"""Exit when the predicted probability of an error is low."""

from __future__ import annotations

from typing import ClassVar

from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState


@ExitPolicy.register("predicted_error")
class PredictedError(ThresholdPolicy):
    """
    BERxiT's learning-to-exit criterion (Xin et al. 2021, section 3.3): a sample exits at the first exit i < L whose
    predicted probability of an error, u_i, is below the threshold, strictly. The paper uses the certainty 1 - u_i. In a
    regression u_i is the predicted |tanh(y_i - y)|.

    Needs the signal `predicted_error`: u_i, after the sigmoid.

    Registered as an `ExitPolicy` with name "predicted_error".

    # Parameters

    thresholds : `ThresholdStrategy` or `float` or `str` or `list`, optional (default = `None`)
        Probabilities of an error; the released code's default is 0.005. See `ThresholdPolicy`.
    min_exit : `int`, optional (default = `1`)
    """

    required_signals: ClassVar[tuple[str, ...]] = ("predicted_error",)
    probability_signals: ClassVar[tuple[str, ...]] = ("predicted_error",)
    higher_is_more_confident: ClassVar[bool] = False
    strict: ClassVar[bool] = True
    serves_regression: ClassVar[bool] = True

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=signals.signal("predicted_error"))

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        return 0.0, 1.0
