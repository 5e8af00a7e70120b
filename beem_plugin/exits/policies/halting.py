"""Exit at a quantile of the halting distribution."""

from __future__ import annotations

from typing import ClassVar

import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.threshold_strategy import Thresholds

MEDIAN = 0.5


@ExitPolicy.register("q_exit")
@ExitPolicy.register("halting")
class Halting(ThresholdPolicy):
    """
    PALBERT's Q-exit (Balagansky and Gavrilov 2022, section 3.2). The head predicts lambda_i, the probability of halting
    at exit i given that the sample reaches it, so that it halts at i with probability p(i) = lambda_i prod_{j<i} (1 -
    lambda_j). A sample exits at the first exit at which the cumulative probability

        CDF_i = sum_{j<=i} p(j) = 1 - prod_{j<=i} (1 - lambda_j)

    exceeds the threshold, strictly. With 0.5 that is the median of its exit distribution; PonderNet draws from the
    distribution instead. The release stops adding to the CDF beyond 0.95, which matters for larger thresholds only;
    this implementation continues.

    Needs the signal `halt`: lambda_i, after the sigmoid.

    Registered as an `ExitPolicy` with name "halting", also as "q_exit".

    # Parameters

    threshold : `float`, optional (default = `0.5`)
        One quantile for all exits.
    thresholds : `ThresholdStrategy` or `float` or `str` or `list`, optional (default = `threshold`)
        In its place: a list with an entry for every exit but the last, or a strategy that fits them. See
        `ThresholdPolicy`.
    min_exit : `int`, optional (default = `1`)
    """

    required_signals: ClassVar[tuple[str, ...]] = ("halt",)
    probability_signals: ClassVar[tuple[str, ...]] = ("halt",)
    speed_keys: ClassVar[tuple[str, ...] | None] = ("threshold", "thresholds")
    strict: ClassVar[bool] = True
    serves_regression: ClassVar[bool] = True

    def __init__(self, threshold: float | None = None, thresholds: Thresholds | None = None, min_exit: int = 1) -> None:
        if threshold is not None and thresholds is not None:
            raise ConfigurationError("threshold: found both threshold and thresholds, allowed: one of them")
        if thresholds is None:
            thresholds = MEDIAN if threshold is None else threshold
        super().__init__(thresholds, min_exit)

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        zeros = self.zeros(batch_size, device)
        return ExitState(score=zeros, running=torch.ones_like(zeros))

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        running = state["running"] * (1 - signals.signal("halt"))
        return ExitState(score=1 - running, running=running)

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        return 0.0, 1.0
