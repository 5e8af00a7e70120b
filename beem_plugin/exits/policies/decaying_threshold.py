"""A threshold that decreases along a caption."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.trace_interface import Trace

SHARE = 0.9
"""Share of the threshold that remains at any position."""


@ExitPolicy.register("decaying_threshold")
class DecayingThreshold(ThresholdPolicy):
    """
    Another policy whose thresholds are higher for the first tokens of a caption than for later ones, since an early
    error affects all tokens after it. With lambda the other policy's threshold, t the token's position from 0 and N the
    maximum length, the threshold is

        0.9 lambda + 0.1 exp(-temperature t / N)

    for `"calm"` (CALM, Schuster et al. 2022, Eq. 5; its release has 0.1 to the power of lambda instead of 0.1, and
    always passes t = 0), and for `"mue"` (MuE, Tang et al. 2023, as released)

        never in the first third of N tokens, then 0.9 lambda + 0.1 exp(-(t + 1) / (N + 1)).

    The score is shifted instead of the threshold, so that lambda is calibrated like any threshold.

    Needs the signal `position`.

    Registered as an `ExitPolicy` with name "decaying_threshold".

    # Parameters

    policy : `ExitPolicy`
        One that compares a score with thresholds, larger meaning more confident: `margin`, `max_probability`,
        `similarity`, `beem`.
    decay : `str`, optional (default = `"calm"`)
    max_length : `int`, optional (default = `20`)
        N.
    temperature : `float`, optional (default = `4.0`)
        Of `"calm"`.
    """

    def __init__(self, policy: ExitPolicy, decay: str = "calm", max_length: int = 20, temperature: float = 4.0) -> None:
        if not isinstance(policy, ThresholdPolicy) or not policy.higher_is_more_confident:
            raise ConfigurationError(
                f"policy: found {policy.registered_name}, allowed: a policy whose score must exceed "
                "its threshold, such as margin, max_probability, similarity, beem"
            )
        check_choice("decay", decay, ("calm", "mue"))
        check_number("max_length", max_length, low=1)
        check_number("temperature", temperature)
        super().__init__(policy.strategy, policy.min_exit)
        self.policy = policy
        self.decay = decay
        self.max_length = max_length
        self.temperature = temperature
        self.strict = policy.strict  # type: ignore[misc]  # those of the policy inside
        self.probability_signals = policy.probability_signals  # type: ignore[misc]
        self.required_signals = (*policy.required_signals, "position")  # type: ignore[misc]

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        self.policy.bind(exit_layers, num_labels)
        super().bind(exit_layers, num_labels)

    @property
    def needs_all_labels(self) -> bool:
        return self.policy.needs_all_labels

    @property
    def has_parameters(self) -> bool:
        return self.policy.has_parameters

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return self.policy.start(batch_size, num_exits, device)

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        state = self.policy.update(exit_number, signals, inner(state))
        return state.replace(own_score=state["score"], score=self.moved(state["score"], signals.signal("position")))

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        found = self.policy.score_range(exit_number)
        return None if found is None else ((found[0] - 0.1) / SHARE, found[1] / SHARE)

    def moved(self, score: Tensor, position: Tensor) -> Tensor:
        """`(batch,)` the score that passes lambda if and only if `score` passes the threshold at `position`."""
        if self.decay == "calm":
            return score / SHARE - 0.1 * torch.exp(-self.temperature * position / self.max_length) / SHARE
        later = -0.1 * torch.exp(-(position + 1) / (self.max_length + 1)) / SHARE
        return score / SHARE + torch.where(position < self.max_length / 3, -math.inf, later)

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        return self.policy.output(exit_number, signals, inner(state))

    def fit_parameters(self, trace: Trace) -> None:
        self.policy.fit_parameters(trace)

    def report_weights(self) -> list[float] | None:
        return self.policy.report_weights()

    def to_config(self) -> dict[str, Any]:
        self.check_calibrated()
        self.policy.values = self.values  # the inner policy's own thresholds are not used otherwise
        return ExitPolicy.to_config(self)


def inner(state: ExitState) -> ExitState:
    """The state of the inner policy."""
    return state.replace(score=state["own_score"]) if "own_score" in state else state
