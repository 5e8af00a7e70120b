"""Applies a policy to a trace: what would have left where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.calibration_report import CalibrationReport, ExitEvidence
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.speed import depth_summary
from beem_plugin.exits.trace import ExitTrace


@dataclass
class ExitDecisions:
    """
    Where each sample left, and with what.

    # Parameters

    exits : `Tensor`
        `(samples,)` int64, 1-based.
    predictions : `Tensor`
        `(samples,)` int64.
    log_probabilities : `Tensor`
        `(samples, labels)`
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
            f"{type(policy).__name__} needs the signals {missing}, which {where} does not have; "
            f"found: {sorted(available) or 'none beside the logits'}"
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
    check_signals(policy, set(trace.signals), "the trace")
    policy.check_calibrated()
    samples = len(trace)
    state = policy.start(samples, trace.num_exits, "cpu")
    exits = torch.zeros(samples, dtype=torch.int64)
    output = torch.zeros(samples, trace.num_labels, dtype=torch.float64)
    scores: Tensor | None = None
    for exit_number in range(1, trace.num_exits + 1):
        signals = trace.exit_signals(exit_number)
        leaves, state = policy.step(exit_number, signals, state)
        if exit_number == trace.num_exits:
            leaves = torch.ones_like(leaves)
        new = leaves & (exits == 0)
        exits[new] = exit_number
        output[new] = policy.output(exit_number, signals, state)[new]
        score = policy.score(state)
        if score is not None:
            scores = torch.zeros(samples, dtype=torch.float64) if scores is None else scores
            scores[new] = score[new].to(scores.dtype)
    return ExitDecisions(exits, output.argmax(-1), output, scores)


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
    depth = depth_summary(decisions.exits, trace.exit_layers)
    histogram: list[int] = depth["exit_histogram"]
    known = trace.labels >= 0
    wrong = (decisions.predictions != trace.labels) & known
    final_wrong = (trace.logits[:, -1].argmax(-1) != trace.labels) & known
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
    if len(trace) and histogram[0] == len(trace) and trace.num_exits > 1:
        said.append("every calibration sample leaves at exit 1")
    if len(trace) and histogram[-1] == len(trace) and trace.num_exits > 1 and policy.leaves_early:
        said.append("no calibration sample leaves before the last exit")
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


def degenerate_exits(trace: ExitTrace) -> list[str]:
    """A sentence for each run of exits that give every sample the same label: agreement there is no evidence."""
    if len(trace) < 2:
        return []
    predictions = trace.logits.argmax(-1)
    constant = (predictions == predictions[:1]).all(0)
    found = [number for number in range(1, trace.num_exits + 1) if bool(constant[number - 1])]
    if not found:
        return []
    which = ", ".join(map(str, found))
    return [f"degenerate exits ({which}): each gives all {len(trace)} calibration samples one and the same label"]


def binomial_interval(errors: int, samples: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Clopper-Pearson interval of a rate."""
    from scipy.stats import binomtest

    interval = binomtest(errors, samples).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)
