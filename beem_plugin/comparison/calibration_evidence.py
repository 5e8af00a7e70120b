"""Everything that a calibration report shows, as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from beem_plugin.calibration.curves import Curve, curve_of, has_scores
from beem_plugin.calibration.reliability import expected_calibration_error, reliability
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.report import CalibrationReport
from beem_plugin.calibration.theory import theory_report
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.comparison.replay import measure
from beem_plugin.exits.policies.calibrated import Calibrated
from beem_plugin.exits.policy import ExitPolicy

CURVE_POINTS = 200
RELIABILITY_BINS = 10


def calibration_evidence(policy: ExitPolicy, report: CalibrationReport, trace: ExitTrace) -> dict[str, Any]:
    """
    # Parameters

    policy : `ExitPolicy`
        Calibrated.
    report : `CalibrationReport`
    trace : `ExitTrace`
        What it was calibrated on.

    # Returns

    `dict[str, Any]`
        `calibration` (the report), `metrics` and `final_metrics`, `curve` (the rule's score with one threshold swept),
        `fixed_exits` (every sample at the same exit), `reliability` of every exit, `theory`. The last four are `None`
        without labels and for a regression, `curve` for rules without thresholds too.
    """
    known = trace.known.nonzero().flatten()
    decisions = replay(policy, trace)
    evidence: dict[str, Any] = {
        "calibration": report.to_json(),
        "label_names": list(trace.meta.get("label_names") or []),
        "exit_layers": trace.exit_layers,
        "metrics": measure(trace, decisions.predictions),
        "final_metrics": measure(trace, trace.predictions[:, -1]),
        "curve": None,
        "fixed_exits": None,
        "reliability": None,
        "theory": None,
    }
    if len(known) == 0 or trace.is_regression:
        return evidence
    labelled = trace.select(known)
    evidence["fixed_exits"] = fixed_exits(labelled)
    evidence["reliability"] = reliability_of_exits(policy, labelled)
    evidence["theory"] = theory_report(policy, labelled).to_json()
    if has_scores(policy):
        evidence["curve"] = curve_to_json(curve_of(policy, labelled))
    return evidence


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


def evidence_row(entry: dict[str, Any]) -> list[str]:
    """One exit's evidence as the cells of a table."""
    threshold, interval = entry["threshold"], entry["interval"]
    return [
        str(entry["exit"]),
        "-" if threshold is None else threshold if isinstance(threshold, str) else f"{threshold:.4g}",
        str(entry["samples"]),
        "-" if entry["errors"] is None else str(entry["errors"]),
        "-" if entry["error_rate"] is None else f"{100 * entry['error_rate']:.1f} %",
        "-" if interval is None else f"{100 * interval[0]:.1f} - {100 * interval[1]:.1f} %",
        "-" if entry["final_errors"] is None else str(entry["final_errors"]),
    ]
