"""Reports the decisions of a calibrated policy on its calibration data."""

import json
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from beem_plugin.calibration.replay import replay
from beem_plugin.common.metrics import known_labels
from beem_plugin.exits.calibration_report import CalibrationReport, ExitEvidence
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.threshold_strategy import NEVER
from beem_plugin.exits.trace_interface import Trace


def report_on(
    policy: ExitPolicy,
    trace: Trace,
    thresholds: list[float | str] | None = None,
    weights: list[float] | None = None,
    warnings: Sequence[str] = (),
    details: dict[str, Any] | None = None,
) -> CalibrationReport:
    """The report of a policy calibrated on `trace`, with the fitted values: see `CalibrationReport`."""
    decisions = replay(policy, trace)
    depth = trace.depth(decisions.exits, policy)
    known, is_regression = known_labels(trace.labels), trace.num_labels == 1
    exits = decisions.exits[known]
    # Of each labelled sample the loss at its exit and at the last one: squared errors, or 1 where the label is wrong.
    if is_regression:
        squared = (trace.predictions[known] - trace.labels[known].double().unsqueeze(1)) ** 2
        own, last = squared.gather(1, (exits - 1).unsqueeze(1)).squeeze(1), squared[:, -1]
    else:
        wrong = decisions.predictions != trace.labels, trace.predictions[:, -1] != trace.labels
        own, last = (values[known].double() for values in wrong)
    mean, final_mean = _mean(own), _mean(last)
    at_exits = [(own[exits == number], last[exits == number]) for number in range(1, trace.num_exits + 1)]
    found, details = list(warnings), dict(details or {})
    if mean is not None and final_mean is not None and mean > final_mean:
        name, of_last = ("mean squared error", "") if is_regression else ("error", " error")
        found.append(
            f"the calibrated {name} {mean:.4f} exceeds the last exit's{of_last} {final_mean:.4f} on the calibration "
            f"data ({_excess(own - last, trace.has_independent_samples)})"
        )
    if is_regression:
        details |= {"mean_squared_error": mean, "final_mean_squared_error": final_mean}
        details["squared_errors"] = [
            {"exit": number, "left": _mean(left), "last_exit": _mean(of_last)}
            for number, (left, of_last) in enumerate(at_exits, 1)
        ]
    found += degenerate_exits(trace)
    found += one_sided(policy, depth["exit_histogram"], thresholds)
    none: list[Any] = [None] * (trace.num_exits - 1)
    shown = [*(thresholds or none), None]
    return CalibrationReport(
        policy=policy.to_config(),
        samples=len(trace),
        source=trace.source,
        final_error=None if is_regression else final_mean,
        error=None if is_regression else mean,
        layer_speedup=depth["layer_speedup"],
        exit_histogram=depth["exit_histogram"],
        weights=weights,
        thresholds=thresholds,
        evidence=[
            ExitEvidence(number, threshold, len(left), *_error_figures(left, of_last, is_regression))
            for number, (threshold, (left, of_last)) in enumerate(zip(shown, at_exits, strict=True), 1)
        ],
        warnings=found,
        details=details,
    )


def _excess(differences: Tensor, are_independent: bool) -> str:
    """By how much the error exceeds that of the last exit, with the standard error of the paired difference."""
    mean = float(differences.mean())
    if not are_independent or len(differences) < 2:
        return f"by {mean:.4f}"
    error = float(differences.std() / len(differences) ** 0.5)
    return f"by {mean:.4f}, standard error {error:.4f}" + ("; within noise" if mean < 2 * error else "")


def _error_figures(own: Tensor, last: Tensor, is_regression: bool) -> tuple[Any, ...]:
    """Of the samples that exit at one exit: errors, the last exit's, the error rate and its interval."""
    if is_regression:
        return None, None
    errors, samples = int(own.sum()), len(own)
    return errors, int(last.sum()), *((errors / samples, binomial_interval(errors, samples)) if samples else ())


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def one_sided(policy: ExitPolicy, histogram: list[int], thresholds: Sequence[float | str] | None = None) -> list[str]:
    """A warning if all calibration samples exit at the first exit, or all at the last with an early-exit policy."""
    samples = sum(histogram)
    if not samples or len(histogram) == 1:
        return []
    if histogram[0] == samples:
        return ["all calibration samples exit at exit 1"]
    if histogram[-1] != samples or not policy.leaves_early:
        return []
    consequence = "no calibration sample exits before the last exit, which is full depth plus the cost of the exits"
    if not thresholds:
        config = json.dumps(policy.to_config())
        return [consequence + (f": {config}" if len(config) < 200 else "")]
    if all(value == NEVER for value in thresholds):
        return [f"{consequence}: every threshold is {NEVER!r}"]
    shown = ", ".join(value if isinstance(value, str) else f"{value:.4g}" for value in thresholds)
    return [f"{consequence}: no sample passes any of the thresholds {shown}"]


def degenerate_exits(trace: Trace) -> list[str]:
    """A warning if exits predict the same label, or value, for all samples: their agreement carries no information."""
    # The labels of sentences are numbers of exits.
    if len(trace) < 2 or getattr(trace, "meta", {}).get("numbers_exits"):
        return []
    constant = (trace.predictions == trace.predictions[:1]).all(0).nonzero().flatten()
    if not len(constant):
        return []
    which = ", ".join(str(column + 1) for column in constant.tolist())
    what = "value" if trace.num_labels == 1 else "label"
    return [f"degenerate exits ({which}): each predicts the same {what} for all {len(trace)} calibration samples"]


def binomial_interval(errors: int, samples: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Clopper-Pearson interval of a rate."""
    from scipy.special import betaincinv

    tail, right = (1 - confidence) / 2, samples - errors
    low = float(betaincinv(errors, right + 1, tail)) if errors else 0.0
    return low, float(betaincinv(errors + 1, right, 1 - tail)) if right else 1.0
