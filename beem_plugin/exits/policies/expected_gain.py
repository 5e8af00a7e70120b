"""Exit when the expected gain in accuracy of further layers is below their cost."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import check_number
from beem_plugin.exits.policies.expert_model import LOG_FLOOR, ExpertModel, fit_experts, log_odds
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.threshold_strategy import Thresholds
from beem_plugin.exits.trace_interface import Trace


@ExitPolicy.register("expected_gain")
class ExpectedGain(ThresholdPolicy):
    """
    Exits are experts that vote; a sample exits when the votes of further exits are not worth their layers.

    *The vote.* Each exit's distribution p_i is combined with the vote so far in log-odds:

        ln v_i(c) = m_i ln v_{i-1}(c) + t_i ln p_i(c) + b_i(c) - normaliser,    v_1 without m_1,

    and a sample that exits at i < L gets the label y_i with the largest v_i; at the last exit it gets that exit's own.

    *When to stop.* A sample that exits at i and not at j > i saves the cost l_j - l_i, in layers with the branches of
    the exits in between, and loses the accuracy R_j - R_i (1 if right, else 0). If accuracy lambda is worth a layer,
    stopping is best once

        max_{j>i} E[R_j - R_i | x_i] / (l_j - l_i)  <=  lambda,

    with x_i the outputs of the exits up to i: the largest expected gain *per layer* of any later exit. Continuing
    matters only if the label changes, E[R_j - R_i | x] = P(change | x) E[R_j - R_i | change, x], and a few hundred
    samples determine how *often* labels change far better than for which of them that is an improvement. So the second
    factor is one number per exit, and the score is

        S_i = g_i sigma(u_i . [log-odds of y_i under v_i, under p_i, and under p_{i-1}] + d_i(y_i)),

        g_i = max_{j>i} (mean R_j - mean R_i) / (l_j - l_i) / P(y_i differs from the label at L),

    where sigma(.) is a logistic model of "the last exit predicts another label". A sample exits when S_i <= the
    threshold, which is lambda itself: with 0.01 it exits when another layer is expected to gain less than 1 % of
    accuracy, so that an uncertain sample exits if the following exits are no better.

    *The fit.* The target of a sample is the last exit's distribution after temperature scaling, mixed with its label,
    if known. m, t >= 0 and b minimise the cross-entropy of v_i to the target, u and d the log-loss of changes, both
    with a ridge penalty.

    Registered as an `ExitPolicy` with name "expected_gain".

    # Parameters

    thresholds, min_exit
        See `ThresholdPolicy`; accuracy per layer. Exits before `min_exit` vote.
    model : `ExpertModel`, optional (default = fitted)
        The fitted numbers in a calibrated policy's config.
    ridge : `float`, optional (default = `1.0`)
        The penalty on the weights of standardised features.
    label_share : `float`, optional (default = `0.3`)
        The share of the labels in the target distribution, from 0 to 1.
    """

    higher_is_more_confident: ClassVar[bool] = False
    fitted: ClassVar[str | None] = "model"

    def __init__(
        self,
        thresholds: Thresholds | None = None,
        model: ExpertModel | None = None,
        ridge: float = 1.0,
        label_share: float = 0.3,
        min_exit: int = 1,
    ) -> None:
        super().__init__(thresholds, min_exit)
        check_number("ridge", ridge, open_low=True)
        check_number("label_share", label_share, high=1)
        self.ridge = ridge
        self.label_share = label_share
        self.model = model

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        if self.model is not None:
            self.model.check(self.num_exits, num_labels)

    def fit_parameters(self, trace: Trace) -> None:
        self.model = fit_experts(trace, self.ridge, self.label_share)

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        zeros = self.zeros(batch_size, device)
        per_label = zeros.unsqueeze(1).repeat(1, self.num_labels)
        return ExitState(score=zeros, vote=per_label, before=per_label)

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        own = signals.log_probabilities
        if exit_number >= self.num_exits:
            return ExitState(score=torch.zeros_like(own[:, 0]), vote=own, before=own)
        assert self.model is not None, "calibrated before use"
        i = exit_number - 1
        own = own.clamp(min=LOG_FLOOR)
        bias, change_bias = own.new_tensor(self.model.bias[i]), own.new_tensor(self.model.change_bias[i])
        combined = self.model.memory[i] * state["vote"] + self.model.trust[i] * own + bias
        vote = combined.log_softmax(-1).clamp(min=LOG_FLOOR)
        label = vote.argmax(-1, keepdim=True)  # (batch, 1)
        change = change_bias[label.squeeze(1)]
        experts = (vote, own, own if exit_number == 1 else state["before"])
        for weight, expert in zip(self.model.change[i], experts, strict=True):
            change = change + weight * log_odds(expert, label)
        # `sigmoid` would make the last digit depend on a sample's position in a batch of 16 or more.
        chance = 1 / (1 + (-change).exp())
        return ExitState(score=self.model.gain[i] * chance, vote=vote, before=own)

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        if self.model is None:
            return None
        gain = self.model.gain[exit_number - 1]
        return min(gain, 0.0), max(gain, 0.0)

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        # Clipped probabilities do not sum to 1.
        return state["vote"].log_softmax(-1)

    def parameters(self) -> dict[str, Any]:
        assert self.model is not None, "calibrated before use"
        return {"model": self.model.to_config()}
