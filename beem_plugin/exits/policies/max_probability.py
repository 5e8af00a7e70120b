"""Exit when the largest probability is high."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.threshold_strategy import Thresholds

FALLBACKS = ("last", "most_confident")


@ExitPolicy.register("confidence")
@ExitPolicy.register("max_probability")
class MaxProbability(ThresholdPolicy):
    """
    A sample exits at the first exit whose largest probability is at least the threshold: the confidence criterion of
    Shallow-Deep networks (Kaya et al. 2019, section 3.2) and CALM's softmax variant.

    Registered as an `ExitPolicy` with name "max_probability", also as "confidence".

    # Parameters

    thresholds : `ThresholdStrategy` or `float` or `str` or `list`, optional (default = `None`)
        Probabilities. See `ThresholdPolicy`.
    min_exit : `int`, optional (default = `1`)
    fallback : `str`, optional (default = `"last"`)
        The output of a sample that no exit before the last is confident about: `"last"`, the last exit's;
        `"most_confident"`, as in Shallow-Deep networks, that of the most confident of all exits from `min_exit` on, the
        earliest one of a tie. The sample is computed at full depth in both cases.
    """

    def __init__(self, thresholds: Thresholds | None = None, min_exit: int = 1, fallback: str = "last") -> None:
        super().__init__(thresholds, min_exit)
        if fallback not in FALLBACKS:
            raise ConfigurationError(not_allowed("fallback", fallback, FALLBACKS))
        self.fallback = fallback

    def needs(self, exit_number: int) -> bool:
        if not self.describes_itself("needs") or self.can_leave(exit_number):
            return True
        return self.fallback == "most_confident" and exit_number >= self.min_exit

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        score = signals.confidence
        if self.fallback == "last":
            return ExitState(score=score)
        if exit_number <= self.min_exit:
            return ExitState(score=score, highest=score, most_confident=signals.log_probabilities)
        higher = score > state["highest"]
        return ExitState(
            score=score,
            highest=torch.where(higher, score, state["highest"]),
            most_confident=torch.where(higher.unsqueeze(1), signals.log_probabilities, state["most_confident"]),
        )

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        return 1 / self.num_labels, 1.0

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        if self.fallback == "most_confident" and exit_number >= self.num_exits:
            return state["most_confident"]
        return signals.log_probabilities

    @property
    def needs_all_labels(self) -> bool:
        return self.fallback != "last"

    def parameters(self) -> dict[str, Any]:
        return {"fallback": self.fallback}
