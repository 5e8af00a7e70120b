"""Any policy, on calibrated confidences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.calibration.confidence import ConfidenceCalibration, as_calibration, calibrate_signals
from beem_plugin.calibration.reliability import expected_calibration_error
from beem_plugin.calibration.replay import report_on
from beem_plugin.calibration.report import CalibrationReport
from beem_plugin.calibration.score_key import fingerprint
from beem_plugin.calibration.thresholds import ScoreTable
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState


@ExitPolicy.register("calibrated")
class Calibrated(ExitPolicy):
    """
    Another policy that sees every exit's logits after a `ConfidenceCalibration`. Everything else (thresholds, weights,
    score) is the other policy's, fitted on the calibrated confidences. The report's details hold the expected
    calibration error of every exit before and after; both are of the data fitted on.

    Registered as an `ExitPolicy` with name "calibrated".

    # Parameters

    policy : `ExitPolicy`
    calibration : `ConfidenceCalibration` or `str`, optional (default = `"temperature"`)
    """

    speed_keys: ClassVar[tuple[str, ...] | None] = ()  # those of the policy inside

    def __init__(self, policy: ExitPolicy, calibration: ConfidenceCalibration | str | None = None) -> None:
        self.policy = policy
        self.calibration = as_calibration(calibration)
        self.required_signals = policy.required_signals  # type: ignore[misc]  # those of the policy inside
        self.leaves_early = policy.leaves_early  # type: ignore[misc]

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        self.calibration.check_exits(self.num_exits, num_labels)
        self.policy.bind(exit_layers, num_labels)

    @property
    def is_calibrated(self) -> bool:
        return self.calibration.is_fitted and self.policy.is_calibrated

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return self.policy.start(batch_size, num_exits, device)

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        return self.policy.step(exit_number, self._signals(exit_number, signals), state)

    def can_leave(self, exit_number: int) -> bool:
        return self.policy.can_leave(exit_number)

    def needs(self, exit_number: int) -> bool:
        return self.policy.needs(exit_number)

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        return self.policy.output(exit_number, self._signals(exit_number, signals), state)

    def score(self, state: ExitState) -> Tensor | None:
        return self.policy.score(state)

    def _signals(self, exit_number: int, signals: ExitSignals) -> ExitSignals:
        return calibrate_signals(self.calibration, exit_number, signals)

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        return self.policy.out_of_reach(with_ends)

    def score_table(self, trace: ExitTrace) -> ScoreTable:
        """As `ThresholdPolicy.score_table`, of the policy inside, which must have thresholds."""
        table: ScoreTable = self.policy.score_table(self.calibration.apply(trace))  # type: ignore[attr-defined]
        return table

    def score_key(self) -> bytes | None:
        inner, own = self.policy.score_key(), fingerprint(self, without=("policy",))
        return None if inner is None or own is None else own + inner

    def scores(self, trace: ExitTrace) -> ScoreTable:
        return self.policy.scores(self.calibration.apply(trace))

    def limits(self) -> list[float]:
        return self.policy.limits()

    @property
    def shares_fit(self) -> bool:
        return self.policy.shares_fit

    def adopt(self, fitted: ExitPolicy) -> None:
        assert isinstance(fitted, Calibrated)
        self.calibration = fitted.calibration
        self.policy.adopt(fitted.policy)

    def calibrate(self, trace: ExitTrace) -> CalibrationReport:
        self.bind(trace.exit_layers, trace.num_labels)
        if not self.calibration.is_fitted:
            self.calibration.fit(trace)
        applied = self.calibration.apply(trace)
        inner = self.policy.calibrate(applied)
        details = {**inner.details, "confidence_calibration": calibration_details(trace, applied)}
        report = report_on(self, trace, thresholds=inner.thresholds, weights=inner.weights, details=details)
        return replace(report, warnings=list(dict.fromkeys([*inner.warnings, *report.warnings])))

    def to_config(self) -> dict[str, Any]:
        return {"type": "calibrated", "policy": self.policy.to_config(), "calibration": self.calibration.to_config()}


def calibration_details(before: ExitTrace, after: ExitTrace) -> dict[str, list[float]]:
    """The expected calibration error of every exit on the labelled samples, before and after."""
    return {"ece_before": exit_calibration_errors(before), "ece_after": exit_calibration_errors(after)}


def exit_calibration_errors(trace: ExitTrace) -> list[float]:
    """The expected calibration error of every exit, over the labelled samples of `trace`."""
    known = trace.labels >= 0
    errors = []
    for number in range(1, trace.num_exits + 1):
        signals = trace.exit_signals(number)
        right = signals.prediction == trace.labels
        errors.append(expected_calibration_error(signals.confidence[known], right[known]))
    return errors
