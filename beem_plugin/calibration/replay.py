"""Applies a policy to a trace: what would have left where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.report import CalibrationReport, ExitEvidence
from beem_plugin.calibration.speed import trace_depth
from beem_plugin.calibration.thresholds.strategy import NEVER
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.calibration.value_evidence import squared_errors, value_evidence
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policy import ExitPolicy


@dataclass
class ExitDecisions:
    """
    Where each sample left, and with what.

    # Parameters

    exits : `Tensor`
        `(samples,)` int64, 1-based.
    predictions : `Tensor`
        `(samples,)` int64; of a regression float64, the values.
    log_probabilities : `Tensor`
        `(samples, labels)`; `(samples, 0)` of a trace that keeps no probabilities of all labels; of a regression
        `(samples, 1)`, the values.
    scores : `Tensor`, optional
        `(samples,)` the policy's score at the exit where the sample left; `None` if the rule has none.
    """

    exits: Tensor
    predictions: Tensor
    log_probabilities: Tensor
    scores: Tensor | None


def check_signals(policy: ExitPolicy, available: set[str], where: str) -> None:
    """Raises a `ConfigurationError` if `policy` needs a signal that `where` does not have."""
    missing = [name for name in policy.required_signals if name not in available]
    if missing:
        raise ConfigurationError(
            f"{policy.registered_name} needs the signals {missing}, which {where} does not have; "
            f"found: {sorted(available) or 'none beside the logits'}"
        )


def check_trace_serves(policy: ExitPolicy, trace: ExitTrace, where: str) -> None:
    """Raises a `ConfigurationError` if `policy` needs what `trace` does not keep."""
    check_signals(policy, set(trace.signals), where)
    if policy.needs_all_labels and not trace.has_logits:
        raise ConfigurationError(
            f"{policy.registered_name} needs the probabilities of all labels at every exit, {where} keeps only the "
            "most probable one, its probability, the margin and the entropy, as traces of captions do"
        )


def replay(policy: ExitPolicy, trace: ExitTrace) -> ExitDecisions:
    """
    Steps `policy` over all exits of `trace`, all samples at once. The samples that have left are stepped on like the
    others and their later answers ignored: a policy treats each sample by itself, so this equals dropping them.

    # Parameters

    policy : `ExitPolicy`
        Bound to the trace's exits, and calibrated.
    trace : `ExitTrace`

    # Raises

    `NotCalibratedError`
        If the policy has open numbers.
    `ConfigurationError`
        If the policy needs a signal that the trace lacks.
    """
    policy.bind(trace.exit_layers, trace.num_labels)
    check_trace_serves(policy, trace, "the trace")
    policy.check_calibrated()
    samples = len(trace)
    state = policy.start(samples, trace.num_exits, "cpu")
    exits = torch.zeros(samples, dtype=torch.int64)
    predictions = torch.zeros(samples, dtype=torch.float64 if trace.is_regression else torch.int64)
    output = torch.zeros(samples, trace.num_labels if trace.has_logits else 0, dtype=torch.float64)
    scores: Tensor | None = None
    for exit_number in range(1, trace.num_exits + 1):
        signals = trace.exit_signals(exit_number)
        leaves, state = policy.step(exit_number, signals, state)
        if exit_number == trace.num_exits:
            leaves = torch.ones_like(leaves)
        new = leaves & (exits == 0)
        exits[new] = exit_number
        predictions[new] = policy.prediction(exit_number, signals, state)[new]
        if trace.has_logits:
            output[new] = policy.output(exit_number, signals, state)[new]
        score = policy.score(state)
        if score is not None:
            scores = torch.zeros(samples, dtype=torch.float64) if scores is None else scores
            scores[new] = score[new].to(scores.dtype)
    return ExitDecisions(exits, predictions, output, scores)


def report_on(
    policy: ExitPolicy,
    trace: ExitTrace,
    thresholds: list[float | str] | None = None,
    weights: list[float] | None = None,
    warnings: list[str] | None = None,
    details: dict[str, Any] | None = None,
) -> CalibrationReport:
    """What a calibrated `policy` does on the data it was calibrated on, exit by exit, with the warnings it deserves."""
    decisions = replay(policy, trace)
    depth = trace_depth(trace, decisions.exits)
    histogram: list[int] = depth["exit_histogram"]
    if trace.is_regression:
        return _report_on_values(policy, trace, decisions, thresholds, weights, warnings, details)
    known = trace.known
    wrong = (decisions.predictions != trace.labels) & known
    final_wrong = (trace.predictions[:, -1] != trace.labels) & known
    evidence = []
    for exit_number in range(1, trace.num_exits + 1):
        here = (decisions.exits == exit_number) & known
        samples, errors = int(here.sum()), int((wrong & here).sum())
        threshold = None if thresholds is None or exit_number == trace.num_exits else thresholds[exit_number - 1]
        evidence.append(
            ExitEvidence(
                exit=exit_number,
                threshold=threshold,
                samples=samples,
                errors=errors,
                final_errors=int((final_wrong & here).sum()),
                error_rate=errors / samples if samples else None,
                interval=binomial_interval(errors, samples) if samples else None,
            )
        )
    labelled = int(known.sum())
    error = int(wrong.sum()) / labelled if labelled else None
    final_error = int(final_wrong.sum()) / labelled if labelled else None
    said = list(warnings or [])
    if error is not None and final_error is not None and error > final_error:
        said.append(
            f"the calibrated error {error:.4f} exceeds the last exit's error {final_error:.4f} on the calibration data "
            f"(by {error - final_error:.4f})"
        )
    said.extend(degenerate_exits(trace))
    said.extend(one_sided(policy, histogram, thresholds))
    return CalibrationReport(
        policy=policy.to_config(),
        samples=len(trace),
        source=str(trace.meta.get("source", "")),
        final_error=final_error,
        error=error,
        layer_speedup=depth["layer_speedup"],
        exit_histogram=histogram,
        weights=weights,
        thresholds=thresholds,
        evidence=evidence,
        warnings=said,
        details=dict(details or {}),
    )


def _report_on_values(
    policy: ExitPolicy,
    trace: ExitTrace,
    decisions: ExitDecisions,
    thresholds: list[float | str] | None,
    weights: list[float] | None,
    warnings: list[str] | None,
    details: dict[str, Any] | None,
) -> CalibrationReport:
    """`report_on` of a regression, with squared errors for error rates."""
    depth = trace_depth(trace, decisions.exits)
    found = squared_errors(trace, decisions.exits)
    error, final_error = found["mean_squared_error"], found["final_mean_squared_error"]
    said = list(warnings or [])
    if error is not None and error > final_error:
        said.append(
            f"the calibrated mean squared error {error:.4f} exceeds the last exit's {final_error:.4f} on the "
            f"calibration data (by {error - final_error:.4f})"
        )
    said.extend(degenerate_exits(trace))
    said.extend(one_sided(policy, depth["exit_histogram"], thresholds))
    return CalibrationReport(
        policy=policy.to_config(),
        samples=len(trace),
        source=str(trace.meta.get("source", "")),
        final_error=None,
        error=None,
        layer_speedup=depth["layer_speedup"],
        exit_histogram=depth["exit_histogram"],
        weights=weights,
        thresholds=thresholds,
        evidence=value_evidence(trace, decisions.exits, thresholds),
        warnings=said,
        details={**(details or {}), **found},
    )


def one_sided(policy: ExitPolicy, histogram: list[int], thresholds: Sequence[float | str] | None = None) -> list[str]:
    """A sentence if all calibration samples leave at the first exit, or at the last though some were meant not to."""
    samples = sum(histogram)
    if not samples or len(histogram) == 1:
        return []
    if histogram[0] == samples:
        return ["every calibration sample leaves at exit 1"]
    if histogram[-1] == samples and policy.leaves_early:
        return [f"no calibration sample leaves before the last exit{_why(policy, thresholds)}"]
    return []


def _why(policy: ExitPolicy, thresholds: Sequence[float | str] | None) -> str:
    """What nobody passes, and what that means."""
    cost = "so that this is full depth, with the cost of the exits on top"
    if not thresholds:
        config = json.dumps(policy.to_config())
        return f", {cost}" + (f": {config}" if len(config) < 200 else "")
    if all(value == NEVER for value in thresholds):
        return f", {cost}: every threshold is {NEVER!r}"
    shown = ", ".join(value if isinstance(value, str) else f"{value:.4g}" for value in thresholds)
    return f", {cost}: no sample passes any of the thresholds {shown}"


def degenerate_exits(trace: ExitTrace) -> list[str]:
    """
    A sentence for each run of exits that give every sample the same label, or value: agreement there is no evidence.
    """
    if len(trace) < 2:
        return []
    predictions = trace.predictions
    constant = (predictions == predictions[:1]).all(0)
    found = [number for number in range(1, trace.num_exits + 1) if bool(constant[number - 1])]
    if not found:
        return []
    which = ", ".join(map(str, found))
    what = "value" if trace.is_regression else "label"
    return [f"degenerate exits ({which}): each gives all {len(trace)} calibration samples one and the same {what}"]


def binomial_interval(errors: int, samples: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Clopper-Pearson interval of a rate."""
    from scipy.stats import binomtest

    interval = binomtest(errors, samples).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)
