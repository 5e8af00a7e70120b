"""Leave when further exits are not expected to pay for their layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.calibration.expert_model import LOG_FLOOR, ExpertModel, fit_experts
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy, Thresholds
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals, decision_dtype
from beem_plugin.exits.state import ExitState


@ExitPolicy.register("expected_gain")
class ExpectedGain(ThresholdPolicy):
    """
    Exits as experts who vote, and a sample that leaves when hearing more of them is not worth the layers.

    *The vote.* Opinions are combined by log-odds, each exit's with the vote so far (p_i is exit i's distribution):

        ln v_i(c) = m_i ln v_{i-1}(c) + t_i ln p_i(c) + b_i(c) - normaliser,    v_1 without m_1,

    and the label y_i with the largest v_i is what a sample leaving at i < L is given; the last exit speaks for itself.
    A constant confidence (a collapsed exit) gets no weight, a biased one is corrected by b.

    *When to stop.* A sample that leaves at i rather than at j > i saves the layers l_j - l_i and forgoes the accuracy
    R_j - R_i (1 if right, else 0). If accuracy lambda is worth a layer, stopping is best once

        max_{j>i} E[R_j - R_i | x_i] / (l_j - l_i)  <=  lambda,

    with x_i what the exits up to i said: the most that any later expert is expected to bring *a layer*. (It is the
    stopping rule for a sample that would have to choose its exit now; the full dynamic programme, which may change its
    mind on the way, was no better on held-out data.) Waiting matters only if the label changes,
    E[R_j - R_i | x] = P(change | x) E[R_j - R_i | change, x], and calibration data of a few hundred samples show how
    *often* labels change far better than for whom a change is for the better. So the second factor is taken as one
    number an exit, and the score is

        S_i = g_i sigma(u_i . [log-odds of y_i under v_i, under p_i, and under p_{i-1}] + d_i(y_i)),

        g_i = max_{j>i} (mean R_j - mean R_i) / (l_j - l_i) / P(y_i differs from the label at L),

    where sigma(.) is a logistic model of "the last exit will say something else". A sample leaves when S_i <= the
    threshold, which is lambda itself: 0.01 leaves when another layer is expected to buy less than 1 % of accuracy. An
    unsure sample leaves exit 1 where the exits that follow are no better, and a fairly sure one waits where the next
    one is: a confidence threshold cannot say either.

    *The fit.* Who is right is judged by the last exit's calibrated probabilities (temperature scaling), mixed with
    the labels: a label alone is a coin that falls on one side, and with a few hundred of them its noise is most of what
    a model would learn. m, t >= 0 and b minimise the cross-entropy of v_i to the judge, u and d the log-loss of
    changes, both with a ridge penalty. Without labels the last exit is the judge alone.

    A step costs two multiply-adds a label, one log-softmax and three log-odds; the state is v_i and p_i.

    Registered as an `ExitPolicy` with name "expected_gain".

    # Parameters

    thresholds : `ThresholdStrategy` or `float` or `str` or `list`, optional (default = `None`)
        Accuracy a layer. See `ThresholdPolicy`.
    model : `dict`, optional (default = fitted)
        The fitted numbers as a calibrated policy writes them, see `ExpertModel`.
    ridge : `float`, optional (default = `1.0`)
        The pull of the weights of standardised features towards 0.
    label_share : `float`, optional (default = `0.3`)
        How much the labels count beside the last exit as the judge, from 0 to 1.
    min_exit : `int`, optional (default = `1`)
        Earlier exits vote, but nobody leaves there.
    """

    higher_is_surer: ClassVar[bool] = False

    def __init__(
        self,
        thresholds: Thresholds | None = None,
        model: dict[str, Any] | None = None,
        ridge: float = 1.0,
        label_share: float = 0.3,
        min_exit: int = 1,
    ) -> None:
        super().__init__(thresholds, min_exit)
        if not (ridge > 0 and math.isfinite(ridge)):
            raise ConfigurationError(f"ridge: found {ridge}, allowed: a number above 0")
        if not 0 <= label_share <= 1:
            raise ConfigurationError(f"label_share: found {label_share}, allowed: a number from 0 to 1")
        self.ridge = ridge
        self.label_share = label_share
        self.model = None if model is None else ExpertModel.from_config(dict(model))
        self._tensors: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        if self.model is not None:
            self.model.check(self.num_exits, num_labels)

    @property
    def is_calibrated(self) -> bool:
        return super().is_calibrated and self.model is not None

    def fit_parameters(self, trace: ExitTrace) -> None:
        self.model = fit_experts(trace, self.ridge, self.label_share)
        self._tensors = {}

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        zeros = self.zeros(batch_size, device)
        nothing = zeros.unsqueeze(1).repeat(1, self.num_labels)
        return ExitState(score=zeros, vote=nothing, before=nothing)

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        own = signals.log_probabilities
        if exit_number >= self.num_exits:
            return ExitState(score=torch.zeros_like(own[:, 0]), vote=own, before=own)
        assert self.model is not None, "calibrated before use"
        i = exit_number - 1
        own = own.clamp(min=LOG_FLOOR)
        bias, change_bias = self._offsets(i, own.device)
        heard = self.model.memory[i] * state["vote"] + self.model.trust[i] * own + bias
        vote = heard.log_softmax(-1).clamp(min=LOG_FLOOR)
        label = vote.argmax(-1, keepdim=True)  # (batch, 1)
        change = change_bias[label.squeeze(1)]
        voices = (vote, own, own if exit_number == 1 else state["before"])
        for weight, voice in zip(self.model.change[i], voices, strict=True):
            change = change + weight * log_odds(voice, label)
        # Not `sigmoid`: whose last digit depends on where in a batch of 16 or more a sample stands.
        chance = 1 / (1 + (-change).exp())
        return ExitState(score=self.model.gain[i] * chance, vote=vote, before=own)

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        if self.model is None:
            return None
        gain = self.model.gain[exit_number - 1]
        return min(gain, 0.0), max(gain, 0.0)

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        # Clipped ones do not add up to 1.
        return state["vote"].log_softmax(-1)

    def _offsets(self, index: int, device: torch.device) -> tuple[Tensor, Tensor]:
        key = (index, device)
        if key not in self._tensors:
            # Kept on the device: making them anew at every exit would copy from the host each time.
            assert self.model is not None, "calibrated before use"
            rows = (self.model.bias[index], self.model.change_bias[index])
            bias, change = (torch.tensor(row, dtype=decision_dtype(device), device=device) for row in rows)
            self._tensors[key] = (bias, change)
        return self._tensors[key]

    def parameters(self) -> dict[str, Any]:
        assert self.model is not None, "calibrated before use"
        return {"model": self.model.to_config()}


def log_odds(log_probabilities: Tensor, label: Tensor) -> Tensor:
    """`(batch,)` the log-probability of `label`, `(batch, 1)`, over that of all other labels together."""
    others = log_probabilities.scatter(1, label, -math.inf).logsumexp(-1)
    return log_probabilities.gather(1, label).squeeze(1) - others
