"""Any policy, on calibrated confidences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.confidence_calibration import ConfidenceCalibration, as_calibration
from beem_plugin.exits.policies.wrapped import WrappedPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.trace_interface import Trace


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
        self.calibration = as_calibration(calibration)

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

    def to_config(self) -> dict[str, Any]:
        return {"type": "calibrated", "policy": self.policy.to_config(), "calibration": self.calibration.to_config()}
