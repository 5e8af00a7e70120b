"""Policies around another policy: the base class, and any policy on calibrated confidences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.registry import made
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.confidence_calibration import ConfidenceCalibration
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.trace_interface import Trace


class WrappedPolicy(ExitPolicy):
    """Does what the policy inside does; a subclass changes a part of it."""

    speed_keys: ClassVar[tuple[str, ...] | None] = ()  # those of the inner policy

    def __init__(self, policy: ExitPolicy) -> None:
        self.policy = policy
        self.required_signals = policy.required_signals  # type: ignore[misc]  # those of the inner policy
        self.probability_signals = policy.probability_signals  # type: ignore[misc]
        self.leaves_early = policy.leaves_early  # type: ignore[misc]
        self.adapts = policy.adapts  # type: ignore[misc]

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        self.policy.bind(exit_layers, num_labels)

    @property
    def is_calibrated(self) -> bool:
        return self.policy.is_calibrated

    def seen(self, exit_number: int, signals: ExitSignals) -> ExitSignals:
        """The signals that the inner policy reads."""
        return signals

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return self.policy.start(batch_size, num_exits, device)

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        return self.policy.step(exit_number, self.seen(exit_number, signals), state)

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        return self.policy.output(exit_number, self.seen(exit_number, signals), state)

    def score(self, state: ExitState) -> Tensor | None:
        return self.policy.score(state)

    def can_leave(self, exit_number: int) -> bool:
        return self.policy.can_leave(exit_number)

    def needs(self, exit_number: int) -> bool:
        return self.policy.needs(exit_number)

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        return self.policy.out_of_reach(with_ends)

    def observe(self, exits: Tensor, output: Tensor) -> None:
        self.policy.observe(exits, output)

    def summary(self) -> str:
        return self.policy.summary()


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

    def limits(self) -> list[float]:
        return self.policy.limits()

    @property
    def shares_fit(self) -> bool:
        return self.policy.shares_fit

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
