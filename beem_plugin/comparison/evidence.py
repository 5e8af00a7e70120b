"""Everything that a calibration report shows, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from beem_plugin.calibration.curves import Curve, curve_of, has_scores
from beem_plugin.calibration.reliability import expected_calibration_error, reliability
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.report import CalibrationReport
from beem_plugin.calibration.theory import theory_report
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.comparison.result import measure
from beem_plugin.exits.policies.calibrated import Calibrated
from beem_plugin.exits.policy import ExitPolicy

CURVE_POINTS = 200
RELIABILITY_BINS = 10


@dataclass
class CalibrationEvidence:
    """
    Everything that a calibration report shows. The last four are `None` without labels and for a regression, `curve`
    for rules without thresholds too.

    # Parameters

    calibration : `CalibrationReport`
    label_names, exit_layers : `list`
    metrics, final_metrics : `dict[str, float]`
        Under the policy, and of the last exit.
    curve : `dict[str, Any]`, optional
        The rule's score with one threshold swept.
    fixed_exits : `dict[str, list[float]]`, optional
        Every sample at the same exit.
    reliability : `list[dict[str, Any]]`, optional
        Of every exit.
    theory : `dict[str, Any]`, optional
    """

    calibration: CalibrationReport
    label_names: list[str]
    exit_layers: list[int]
    metrics: dict[str, float]
    final_metrics: dict[str, float]
    curve: dict[str, Any] | None = None
    fixed_exits: dict[str, list[float]] | None = None
    reliability: list[dict[str, Any]] | None = None
    theory: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """`report.json`."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {**own, "calibration": self.calibration.to_json()}


def calibration_evidence(policy: ExitPolicy, report: CalibrationReport, trace: ExitTrace) -> CalibrationEvidence:
    """
    # Parameters

    policy : `ExitPolicy`
        Calibrated.
    report : `CalibrationReport`
    trace : `ExitTrace`
        What it was calibrated on.
    """
    decisions = replay(policy, trace)
    found = CalibrationEvidence(
        report,
        list(trace.meta.get("label_names") or []),
        trace.exit_layers,
        measure(trace, decisions.predictions),
        measure(trace, trace.predictions[:, -1]),
    )
    known = trace.known.nonzero().flatten()
    if len(known) == 0 or trace.is_regression:
        return found
    labelled = trace.select(known)
    found.fixed_exits = fixed_exits(labelled)
    found.reliability = reliability_of_exits(policy, labelled)
    found.theory = theory_report(policy, labelled).to_json()
    if has_scores(policy):
        found.curve = curve_to_json(curve_of(policy, labelled))
    return found


def curve_to_json(curve: Curve) -> dict[str, Any]:
    shown = curve.thinned(CURVE_POINTS)
    return {
        **curve.summary(),
        "settings": shown.settings,
        "accuracy": shown.accuracy.tolist(),
        "speedup": shown.speedup.tolist(),
    }


def fixed_exits(trace: ExitTrace) -> dict[str, list[float]]:
    """Accuracy and layer speed-up if every sample leaves at the same exit."""
    right = trace.predictions == trace.labels.unsqueeze(1)
    layers = trace.exit_layers
    return {"accuracy": right.double().mean(0).tolist(), "speedup": [layers[-1] / layer for layer in layers]}


def reliability_of_exits(policy: ExitPolicy, trace: ExitTrace) -> list[dict[str, Any]]:
    """Bins and expected calibration error of every exit, as it is and after the policy's confidence calibration."""
    after = policy.calibration.apply(trace) if isinstance(policy, Calibrated) else None
    rows = []
    for number in range(1, trace.num_exits + 1):
        row: dict[str, Any] = {"exit": number, "after": None, "ece_after": None}
        row["before"], row["ece_before"] = _reliability(trace, number, trace.labels)
        if after is not None:
            row["after"], row["ece_after"] = _reliability(after, number, trace.labels)
        rows.append(row)
    return rows


def _reliability(trace: ExitTrace, number: int, labels: Tensor) -> tuple[list[dict[str, Any]], float]:
    signals = trace.exit_signals(number)
    right = signals.prediction == labels
    bins = [asdict(entry) for entry in reliability(signals.confidence, right, RELIABILITY_BINS)]
    return bins, expected_calibration_error(signals.confidence, right)
