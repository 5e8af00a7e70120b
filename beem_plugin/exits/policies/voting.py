"""Exit when enough exits have voted for one label."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import check_number
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.threshold_strategy import Thresholds


@ExitPolicy.register("voting")
class Voting(ThresholdPolicy):
    """
    The ensemble of internal classifiers (EEIC, Sun et al. 2021, section 3.3): every exit so far votes for its label,
    and a sample exits at the first exit with

        V_i = max_c sum_{j<=i} 1[y_j = c] / i^exponent > threshold,

    strictly, with the leading label, which is also the output of the last exit. Of labels with equally many votes, the
    one with the latest vote leads. The probabilities given with the label are those of the last exit that voted for it.

    Registered as an `ExitPolicy` with name "voting".

    # Parameters

    thresholds, min_exit
        See `ThresholdPolicy`; fractions of the votes if `exponent` is 1, votes if it is 0. With `exponent` 1 the first
        exit has all votes, V_1 = 1: raise `min_exit` to exclude it; exits before it still vote.
    exponent : `float`, optional (default = `1.0`)
        The paper's lambda.
    """

    strict: ClassVar[bool] = True

    def __init__(self, thresholds: Thresholds | None = None, exponent: float = 1.0, min_exit: int = 1) -> None:
        super().__init__(thresholds, min_exit)
        check_number("exponent", exponent)
        self.exponent = exponent

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        zeros = self.zeros(batch_size, device)
        votes = zeros.unsqueeze(1).repeat(1, self.num_labels)
        return ExitState(score=zeros, votes=votes, leading=votes)

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        label = signals.prediction.unsqueeze(1)  # (batch, 1)
        votes = state["votes"].scatter_add(1, label, torch.ones_like(state["votes"][:, :1]))
        most = votes.amax(1)
        # Only the current exit's label can become the leading one, and it wins ties.
        leads = votes.gather(1, label).squeeze(1) >= most
        leading = torch.where(leads.unsqueeze(1), signals.log_probabilities, state["leading"])
        return ExitState(score=most / exit_number**self.exponent, votes=votes, leading=leading)

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        fewest = math.ceil(exit_number / self.num_labels)
        return fewest / exit_number**self.exponent, exit_number ** (1 - self.exponent)

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        return state["leading"]
