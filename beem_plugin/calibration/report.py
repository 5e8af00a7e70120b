"""Reports the decisions of a calibrated policy on its calibration data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from beem_plugin.calibration.replay import replay
from beem_plugin.common.known_labels import known_labels
from beem_plugin.exits.calibration_report import CalibrationReport, ExitEvidence
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.threshold_strategy import NEVER
from beem_plugin.exits.trace_interface import Trace

__all__ = ["CalibrationReport", "ExitEvidence", "report_on"]


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
    known = known_labels(trace.labels)
    found, details = list(warnings), dict(details or {})
    error = final_error = wrong = final_wrong = None
    if trace.num_labels == 1:
        details |= squared_errors(trace, decisions.exits)
        compared = details["mean_squared_error"], details["final_mean_squared_error"]
        names = "mean squared error", ""
    else:
        wrong = (decisions.predictions != trace.labels) & known
        final_wrong = (trace.predictions[:, -1] != trace.labels) & known
        if labelled := int(known.sum()):
            error, final_error = int(wrong.sum()) / labelled, int(final_wrong.sum()) / labelled
        compared = error, final_error
        names = "error", " error"
    if compared[0] is not None and compared[0] > compared[1]:
        found.append(
            f"the calibrated {names[0]} {compared[0]:.4f} exceeds the last exit's{names[1]} {compared[1]:.4f} on the "
            f"calibration data ({_excess(trace, decisions.exits, wrong, final_wrong)})"
        )
    found += degenerate_exits(trace)
    found += one_sided(policy, depth["exit_histogram"], thresholds)
    none: list[Any] = [None] * (trace.num_exits - 1)
    shown = [*(thresholds or none), None]
    return CalibrationReport(
        policy=policy.to_config(),
        samples=len(trace),
        source=trace.source,
        final_error=final_error,
        error=error,
        layer_speedup=depth["layer_speedup"],
        exit_histogram=depth["exit_histogram"],
        weights=weights,
        thresholds=thresholds,
        evidence=[
            exit_evidence(number, threshold, known & (decisions.exits == number), wrong, final_wrong)
            for number, threshold in enumerate(shown, 1)
        ],
        warnings=found,
        details=details,
    )


def _excess(trace: Trace, exits: Tensor, wrong: Tensor | None, final_wrong: Tensor | None) -> str:
    """By how much the error exceeds that of the last exit, with the standard error of the paired difference."""
    if wrong is None or final_wrong is None:
        squared, own = _squared(trace, exits)
        differences = own - squared[:, -1]
    else:
        differences = wrong.double() - final_wrong.double()
    differences = differences[known_labels(trace.labels)]
    mean = float(differences.mean())
    if not trace.has_independent_samples or len(differences) < 2:
        return f"by {mean:.4f}"
    error = float(differences.std() / len(differences) ** 0.5)
    return f"by {mean:.4f}, standard error {error:.4f}" + ("; within noise" if mean < 2 * error else "")


def exit_evidence(
    exit_number: int,
    threshold: float | str | None,
    exiting: Tensor,
    wrong: Tensor | None,
    final_wrong: Tensor | None,
) -> ExitEvidence:
    """The labelled samples that exit here, and how many of them are wrong; all `(samples,)` bool."""
    samples = int(exiting.sum())
    if wrong is None or final_wrong is None:  # a regression
        return ExitEvidence(exit_number, threshold, samples, None, None)
    errors, final_errors = int((wrong & exiting).sum()), int((final_wrong & exiting).sum())
    if not samples:
        return ExitEvidence(exit_number, threshold, samples, errors, final_errors)
    interval = binomial_interval(errors, samples)
    return ExitEvidence(exit_number, threshold, samples, errors, final_errors, errors / samples, interval)


def _squared(trace: Trace, exits: Tensor) -> tuple[Tensor, Tensor]:
    """Squared errors of a regression at all exits, `(samples, exits)`, and at the exit of each sample, `(samples,)`."""
    squared = (trace.predictions - trace.labels.double().unsqueeze(1)) ** 2
    return squared, squared.gather(1, (exits - 1).unsqueeze(1)).squeeze(1)


def squared_errors(trace: Trace, exits: Tensor) -> dict[str, Any]:
    """
    Of a regression whose samples exit at `exits`: `mean_squared_error` of the policy, `final_mean_squared_error` of the
    last exit; and `squared_errors`: for each exit the mean squared error of the samples that exit there, and of the
    last exit on the same samples. Over labelled samples; `None` where there are none.
    """
    known = known_labels(trace.labels)
    squared, own = _squared(trace, exits)
    members = [known & (exits == number) for number in range(1, trace.num_exits + 1)]
    return {
        "mean_squared_error": _mean(own[known]),
        "final_mean_squared_error": _mean(squared[known, -1]),
        "squared_errors": [
            {"exit": number, "left": _mean(own[exiting]), "last_exit": _mean(squared[exiting, -1])}
            for number, exiting in enumerate(members, 1)
        ],
    }


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
