"""Exit when the two largest probabilities are far apart."""

from __future__ import annotations

from typing import ClassVar

from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState


@ExitPolicy.register("margin")
class Margin(ThresholdPolicy):
    """
    A sample exits at the first exit at which the largest probability exceeds the second largest by at least the
    threshold: the softmax variant of CALM (Schuster et al. 2022, section 3.5) and FREE.

    Registered as an `ExitPolicy` with name "margin".

    # Parameters

    thresholds : `ThresholdStrategy` or `float` or `str` or `list`, optional (default = `None`)
        Differences of probabilities, 0 to 1. See `ThresholdPolicy`.
    min_exit : `int`, optional (default = `1`)
    """

    memoryless: ClassVar[bool] = True

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=signals.margin)

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        return 0.0, 1.0
