"""Policies around another policy: on calibrated confidences, and with a threshold that decreases along a caption."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.common.registry import made
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.confidence_calibration import ConfidenceCalibration
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.trace_interface import Trace

SHARE = 0.9  # share of a decaying threshold that remains at any position


def method_of_inner(name: str) -> Any:
    """The method `name` of the policy inside."""
    return lambda self, *args, **kwargs: getattr(self.policy, name)(*args, **kwargs)


def property_of_inner(name: str) -> Any:
    """The property `name` of the policy inside."""
    return property(lambda self: getattr(self.policy, name))


class WrappedPolicy(ExitPolicy):
    """Does what the policy inside does; a subclass changes a part of it."""

    speed_keys: ClassVar[tuple[str, ...] | None] = ()  # those of the inner policy

    is_calibrated = property_of_inner("is_calibrated")
    start, score = method_of_inner("start"), method_of_inner("score")
    can_leave, needs = method_of_inner("can_leave"), method_of_inner("needs")
    observe, out_of_reach, summary = map(method_of_inner, ("observe", "out_of_reach", "summary"))

    def __init__(self, policy: ExitPolicy) -> None:
        self.policy = policy
        self.required_signals = policy.required_signals  # type: ignore[misc]  # those of the inner policy
        self.probability_signals = policy.probability_signals  # type: ignore[misc]
        self.leaves_early = policy.leaves_early  # type: ignore[misc]
        self.adapts = policy.adapts  # type: ignore[misc]

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        self.policy.bind(exit_layers, num_labels)

    def seen(self, exit_number: int, signals: ExitSignals) -> ExitSignals:
        """The signals that the inner policy reads."""
        return signals

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        return self.policy.step(exit_number, self.seen(exit_number, signals), state)

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        return self.policy.output(exit_number, self.seen(exit_number, signals), state)


@ExitPolicy.register("calibrated")
class Calibrated(WrappedPolicy):
    """
    Another policy, on each exit's logits after a `ConfidenceCalibration`. Everything else (thresholds, weights, score)
    is the other policy's, fitted on the calibrated confidences. The report's details hold the expected calibration
    error of every exit before and after; both are of the data fitted on.

    Registered as an `ExitPolicy` with name "calibrated".

    # Parameters

    policy : `ExitPolicy`
    calibration : `ConfidenceCalibration` or `str`, optional (default = `"temperature"`)
    """

    limits, shares_fit = method_of_inner("limits"), property_of_inner("shares_fit")

    def __init__(self, policy: ExitPolicy, calibration: ConfidenceCalibration | str | None = None) -> None:
        super().__init__(policy)
        self.calibration = made(ConfidenceCalibration, calibration, "temperature")

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        self.calibration.check_exits(len(exit_layers), num_labels)
        super().bind(exit_layers, num_labels)

    @property
    def is_calibrated(self) -> bool:
        return self.calibration.is_fitted and self.policy.is_calibrated

    def seen(self, exit_number: int, signals: ExitSignals) -> ExitSignals:
        return self.calibration.signals(exit_number, signals)

    def exits_on(self, trace: Trace) -> Tensor | None:
        return self.policy.exits_on(self.calibration.apply(trace)) if self.adapts else None

    def score_table(self, trace: Trace) -> ScoreTable:
        """As `ThresholdPolicy.score_table`, of the inner policy, which must have thresholds."""
        table: ScoreTable = self.policy.score_table(self.calibration.apply(trace))  # type: ignore[attr-defined]
        return table

    def score_key(self) -> bytes | None:
        inner, own = self.policy.score_key(), self.key_without("policy")
        return None if inner is None or own is None else own + inner

    def scores(self, trace: Trace) -> ScoreTable:
        return self.policy.scores(self.calibration.apply(trace))

    def adopt(self, fitted: ExitPolicy) -> None:
        assert isinstance(fitted, Calibrated)
        self.calibration = fitted.calibration
        self.policy.adopt(fitted.policy)

    def calibrate(self, trace: Trace, parameters: Trace | None = None) -> CalibrationReport:
        self.bind(trace.exit_layers, trace.num_labels)
        if not self.calibration.is_fitted:
            self.calibration.fit(trace)
        applied = self.calibration.apply(trace)
        inner = self.policy.calibrate(applied, None if parameters is None else self.calibration.apply(parameters))
        errors = {"ece_before": trace.calibration_errors(), "ece_after": applied.calibration_errors()}
        details = {**inner.details, "confidence_calibration": errors}
        report = trace.report_on(self, thresholds=inner.thresholds, weights=inner.weights, details=details)
        return replace(report, warnings=list(dict.fromkeys([*inner.warnings, *report.warnings])))


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

    needs_all_labels, has_parameters = property_of_inner("needs_all_labels"), property_of_inner("has_parameters")
    start, fit_parameters = method_of_inner("start"), method_of_inner("fit_parameters")
    report_weights = method_of_inner("report_weights")

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

    def to_config(self) -> dict[str, Any]:
        self.check_calibrated()
        self.policy.values = self.values  # the inner policy's own thresholds are not used otherwise
        return ExitPolicy.to_config(self)


def inner(state: ExitState) -> ExitState:
    """The state of the inner policy."""
    return state.replace(score=state["own_score"]) if "own_score" in state else state
