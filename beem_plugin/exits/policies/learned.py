"""Policies on a signal of the model besides its logits: predicted errors, gates, halting, similarity."""

from typing import ClassVar

import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.threshold_strategy import Thresholds


@ExitPolicy.register("predicted_error")
class PredictedError(ThresholdPolicy):
    """
    BERxiT's learning-to-exit criterion (Xin et al. 2021, section 3.3): a sample exits at the first exit i < L whose
    predicted probability of an error, u_i, is below the threshold, strictly. The paper uses the certainty 1 - u_i. In a
    regression u_i is the predicted |tanh(y_i - y)|.

    Needs the signal `predicted_error`: u_i, after the sigmoid.

    Registered as an `ExitPolicy` with name "predicted_error".

    # Parameters

    thresholds, min_exit
        See `ThresholdPolicy`; probabilities of an error. The released code's default is 0.005.
    """

    required_signals = probability_signals = ("predicted_error",)
    higher_is_more_confident: ClassVar[bool] = False
    strict: ClassVar[bool] = True
    serves_regression: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=signals.signal("predicted_error"))


@ExitPolicy.register("similarity")
class Similarity(ThresholdPolicy):
    """
    A sample exits at the first exit whose hidden states are more similar to the previous block's than the threshold,
    strictly: cos(h_i, h_{i-1}) > tau (MuE, Tang et al. 2023; CALM's state variant), for each sample: MuE's release
    takes one cosine over the flattened batch.

    Needs the signal `similarity`.

    Registered as an `ExitPolicy` with name "similarity".

    # Parameters

    thresholds, min_exit
        See `ThresholdPolicy`; cosines, -1 to 1. `min_exit` is 2 for CALM, which does not compare the first block's
        state with the embeddings.
    """

    required_signals: ClassVar[tuple[str, ...]] = ("similarity",)
    strict: ClassVar[bool] = True
    serves_regression: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=signals.signal("similarity"))


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

    thresholds, min_exit
        See `ThresholdPolicy`; the default, and the only value in the paper, is 0.5: its trade-off is set by the cost of
        depth when gates are trained.
    """

    required_signals = probability_signals = ("gate",)
    bounds: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    default_thresholds: ClassVar[Thresholds | None] = 0.5

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        zeros = self.zeros(batch_size, device)
        return ExitState(score=zeros, spent=zeros)

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        gate = signals.signal("gate")
        left = 1 - state["spent"]  # 1 - sum_{j<i} g_j
        score = torch.where(left > 0, (gate / left.clamp_min(torch.finfo(left.dtype).tiny)).clamp_max(1), 1.0)
        return ExitState(score=score, spent=state["spent"] + gate)


@ExitPolicy.register("q_exit")
@ExitPolicy.register("halting")
class Halting(ThresholdPolicy):
    """
    PALBERT's Q-exit (Balagansky and Gavrilov 2022, section 3.2). The head predicts lambda_i, the probability of halting
    at exit i given that the sample reaches it, so that it halts at i with probability p(i) = lambda_i prod_{j<i} (1 -
    lambda_j). A sample exits at the first exit at which the cumulative probability

        CDF_i = sum_{j<=i} p(j) = 1 - prod_{j<=i} (1 - lambda_j)

    exceeds the threshold, strictly; with 0.5 that is the median of its exit distribution. The release stops adding to
    the CDF beyond 0.95, which matters for larger thresholds only.

    Needs the signal `halt`: lambda_i, after the sigmoid.

    Registered as an `ExitPolicy` with name "halting", also as "q_exit".

    # Parameters

    threshold : `float`, optional (default = `0.5`)
        One quantile for all exits.
    thresholds, min_exit
        See `ThresholdPolicy`; `thresholds` in place of `threshold`.
    """

    required_signals = probability_signals = ("halt",)
    speed_keys: ClassVar[tuple[str, ...] | None] = ("threshold", "thresholds")
    strict: ClassVar[bool] = True
    serves_regression: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    default_thresholds: ClassVar[Thresholds | None] = 0.5  # the median of the exit distribution

    def __init__(self, threshold: float | None = None, thresholds: Thresholds | None = None, min_exit: int = 1) -> None:
        if threshold is not None and thresholds is not None:
            raise ConfigurationError("threshold: found both threshold and thresholds, allowed: one of them")
        super().__init__(threshold if thresholds is None else thresholds, min_exit)

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        zeros = self.zeros(batch_size, device)
        return ExitState(score=zeros, running=torch.ones_like(zeros))

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        running = state["running"] * (1 - signals.signal("halt"))
        return ExitState(score=1 - running, running=running)
