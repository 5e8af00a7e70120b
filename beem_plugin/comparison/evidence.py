"""Everything that a calibration report shows, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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


@dataclass
class CalibrationEvidence:
    """
    The content of a calibration report: the report, metrics under the policy and of the last exit; `curve`, the
    policy's score with one threshold swept; `fixed_exits`, all samples at the same exit; `reliability` of every exit;
    `theory`. These four are `None` without labels and for a regression, `curve` also for policies without thresholds.
    `plain`: accuracy and speed of plain networks, if any are given.
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
    plain: dict[str, list[float]] | None = None

    def to_json(self) -> dict[str, Any]:
        """`report.json`."""
        return {**vars(self), "calibration": self.calibration.to_json()}


def calibration_evidence(
    policy: ExitPolicy, report: CalibrationReport, trace: ExitTrace, plain: Mapping[int, ExitTrace] | None = None
) -> CalibrationEvidence:
    """The evidence for a `policy` that was calibrated on `trace`, with its `report`, and `plain` networks by depth."""
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
    fixed = fixed_exits(labelled, "accuracy")
    found.fixed_exits = {"accuracy": fixed.accuracy[::-1].tolist(), "speedup": fixed.speedup[::-1].tolist()}
    if plain:
        right = [float(right_of_last_exit(network).mean()) for network in plain.values()]
        found.plain = {"accuracy": right, "speedup": [trace.exit_layers[-1] / layers for layers in plain]}
    found.reliability = reliability_of_exits(policy, labelled)
    found.theory = theory_report(policy, labelled).to_json()
    if has_scores(policy):
        curve = curve_of(policy, labelled)
        shown = curve.thinned(CURVE_POINTS)
        points = {"accuracy": shown.accuracy.tolist(), "speedup": shown.speedup.tolist()}
        found.curve = {**curve.summary(), "settings": shown.settings, **points}
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
                row[name] = [asdict(entry) for entry in reliability(*outcome, RELIABILITY_BINS)]
                row[f"ece_{name}"] = expected_calibration_error(*outcome)
        rows.append(row)
    return rows
