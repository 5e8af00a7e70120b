"""Everything that a calibration report shows, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from beem_plugin.calibration.curves import curve_of, has_scores
from beem_plugin.calibration.reliability import expected_calibration_error, reliability
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.report import CalibrationReport
from beem_plugin.calibration.theory import theory_report
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.comparison.operating_curve import CURVE_POINTS
from beem_plugin.comparison.plain_traces import right_of_last_exit
from beem_plugin.comparison.result import fixed_exits, measure
from beem_plugin.exits.policies.calibrated import Calibrated
from beem_plugin.exits.policy import ExitPolicy

RELIABILITY_BINS = 10


def calibration_evidence(
    policy: ExitPolicy, report: CalibrationReport, trace: ExitTrace, plain: Mapping[int, ExitTrace] | None = None
) -> dict[str, Any]:
    """
    `report.json` of a `policy` that was calibrated on `trace`: the report, metrics under the policy and of the last
    exit; `curve`, the policy's score with one threshold swept; `fixed_exits`, all samples at the same exit;
    `reliability` of every exit; `theory`. These four are `None` without labels and for a regression, `curve` also for
    policies without thresholds. `plain`: accuracy and speed of plain networks, given by depth.
    """
    found: dict[str, Any] = {
        "calibration": report.to_json(),
        "label_names": list(trace.meta.get("label_names") or []),
        "exit_layers": trace.exit_layers,
        "metrics": measure(trace, replay(policy, trace).predictions),
        "final_metrics": measure(trace, trace.predictions[:, -1]),
        **dict.fromkeys(("curve", "fixed_exits", "reliability", "theory", "plain")),
    }
    known = trace.known.nonzero().flatten()
    if len(known) == 0 or trace.is_regression:
        return found
    labelled = trace.select(known)
    fixed = fixed_exits(labelled, "accuracy")
    found["fixed_exits"] = {"accuracy": fixed.accuracy[::-1].tolist(), "speedup": fixed.speedup[::-1].tolist()}
    if plain:
        right = [float(right_of_last_exit(network).mean()) for network in plain.values()]
        found["plain"] = {"accuracy": right, "speedup": [trace.exit_layers[-1] / layers for layers in plain]}
    found["reliability"] = reliability_of_exits(policy, labelled)
    found["theory"] = theory_report(policy, labelled)
    if has_scores(policy):
        curve = curve_of(policy, labelled)
        shown = curve.thinned(CURVE_POINTS)
        points = {"accuracy": shown.accuracy.tolist(), "speedup": shown.speedup.tolist()}
        found["curve"] = {**curve.summary(), "settings": shown.settings, **points}
    return found


def reliability_of_exits(policy: ExitPolicy, trace: ExitTrace) -> list[dict[str, Any]]:
    """Bins and expected calibration error of every exit, as it is and after the policy's confidence calibration."""
    after = policy.calibration.apply(trace) if isinstance(policy, Calibrated) else None
    rows = []
    for number in range(1, trace.num_exits + 1):
        row: dict[str, Any] = {"exit": number}
        for name, one in (("before", trace), ("after", after)):
            row[name] = row[f"ece_{name}"] = None
            if one is not None:
                signals = one.exit_signals(number)
                outcome = signals.confidence, signals.prediction == one.labels
                row[name] = reliability(*outcome, RELIABILITY_BINS)
                row[f"ece_{name}"] = expected_calibration_error(*outcome)
        rows.append(row)
    return rows
