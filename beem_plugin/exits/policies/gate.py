"""Exit when a learned gate opens."""

from __future__ import annotations

from typing import ClassVar

import torch

from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.threshold_strategy import Thresholds

EVEN_ODDS = 0.5


@ExitPolicy.register("gate")
class Gate(ThresholdPolicy):
    """
    JEI-DNN (Regol et al. 2024, section 4). The gate of exit i predicts g_i, and the probability of exiting exactly at i
    is limited by the remainder after earlier gates,

        P_i = max(min(g_i, 1 - sum_{j<i} g_j), 0).

    A sample exits at the first exit at which its probability of exiting there, given that it has not exited before,
    P_i / (1 - sum_{j<i} P_j), is 0.5 or more. While the remainder is above 0, P_j = g_j, so that this is

        min(g_i / (1 - sum_{j<i} g_j), 1),

    and 1 once the remainder is 0. Gates are sequential: the score of one depends on all earlier ones.

    Needs the signal `gate`: g_i, after the sigmoid.

    Registered as an `ExitPolicy` with name "gate".

    # Parameters

    thresholds : `ThresholdStrategy` or `float` or `str` or `list`, optional (default = `0.5`)
        The paper uses 0.5 only: its trade-off is set by the cost of depth when gates are trained. See
        `ThresholdPolicy`.
    min_exit : `int`, optional (default = `1`)
    """

    required_signals: ClassVar[tuple[str, ...]] = ("gate",)
    probability_signals: ClassVar[tuple[str, ...]] = ("gate",)

    def __init__(self, thresholds: Thresholds | None = None, min_exit: int = 1) -> None:
        super().__init__(EVEN_ODDS if thresholds is None else thresholds, min_exit)

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        zeros = self.zeros(batch_size, device)
        return ExitState(score=zeros, spent=zeros)

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        gate = signals.signal("gate")
        left = 1 - state["spent"]  # 1 - sum_{j<i} g_j
        score = torch.where(left > 0, (gate / left.clamp_min(torch.finfo(left.dtype).tiny)).clamp_max(1), 1.0)
        return ExitState(score=score, spent=state["spent"] + gate)

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        return 0.0, 1.0
