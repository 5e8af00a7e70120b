"""What is reported of an exit policy on a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from beem_plugin.calibration.outcomes import Outcome
from beem_plugin.calibration.report import CalibrationReport
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.metrics import compute_metrics, count_metrics, metric_giving
from beem_plugin.exits.policy import ExitPolicy

ON_ITSELF = "calibrated on the very data it is judged on: these figures are too good"


def describe_result(
    trace: ExitTrace,
    policy: ExitPolicy,
    metrics: dict[str, float],
    final_metrics: dict[str, float],
    depth: dict[str, Any],
    warnings: list[str],
    report: CalibrationReport | None,
) -> dict[str, Any]:
    """
    One result as files hold it.

    # Parameters

    trace : `ExitTrace`
        What was judged on.
    policy : `ExitPolicy`
        Fitted.
    metrics, final_metrics : `dict[str, float]`
        Of what leaves early, and of the last exit.
    depth : `dict[str, Any]`
        As `depth_summary` gives it.
    warnings : `list[str]`
    report : `CalibrationReport`, optional
        What calibration said.
    """
    resolved = policy.to_config()
    # A policy that wraps another one keeps the numbers in the inner block.
    inner = resolved["policy"] if isinstance(resolved.get("policy"), dict) else resolved
    return {
        "n": len(trace),
        "num_exits": trace.num_exits,
        "metrics": metrics,
        "final_metrics": final_metrics,
        **depth,
        "policy": resolved,
        "weights": inner.get("weights"),
        "thresholds": inner.get("thresholds"),
        "warnings": warnings,
        "calibration": None if report is None else report.to_json(),
    }


def measure(trace: ExitTrace, predictions: Tensor, metrics: Sequence[str] = ()) -> dict[str, float]:
    """
    Accuracy, the task's own metrics and those that give the numbers `metrics`, over the samples with a label; of a
    regression its own alone. Empty where there is no label.
    """
    known = trace.known
    if not bool(known.any()):
        return {}
    labels, given = trace.labels[known].numpy(), predictions[known].numpy()
    return {
        key: value for name in _names(trace, metrics) for key, value in compute_metrics(name, labels, given).items()
    }


def measure_outcome(trace: ExitTrace, outcome: Outcome, metrics: Sequence[str] = ()) -> dict[str, float]:
    """`measure` of an outcome on `trace`."""
    if not len(outcome.counts):
        return {}
    cells = outcome.labels, outcome.predictions, outcome.counts
    return {key: value for name in _names(trace, metrics) for key, value in count_metrics(name, *cells).items()}


def _names(trace: ExitTrace, metrics: Sequence[str]) -> list[str]:
    if trace.is_regression:
        return [trace.metric]
    return list(dict.fromkeys(["accuracy", trace.metric, *map(metric_giving, metrics)]))
