"""Reliability of confidences: the expected calibration error."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from beem_plugin.common.known_labels import known_labels
from beem_plugin.exits.trace_interface import Trace

DEFAULT_BINS = 15


@dataclass
class ReliabilityBin:
    """
    The samples whose confidence lies in (`low`, `high`]: their number, mean confidence, and share of right ones, the
    last two `None` without samples.
    """

    low: float
    high: float
    samples: int
    confidence: float | None
    accuracy: float | None


def reliability(confidence: Tensor, right: Tensor, bins: int = DEFAULT_BINS) -> list[ReliabilityBin]:
    """Bins of equal width; `confidence` is `(samples,)` in [0, 1], `right` `(samples,)` bool."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    member = torch.bucketize(confidence.double(), edges[1:-1])
    counts = torch.bincount(member, minlength=bins)
    mean = torch.bincount(member, weights=confidence.double(), minlength=bins) / counts
    accuracy = torch.bincount(member, weights=right.double(), minlength=bins) / counts
    return [
        ReliabilityBin(low, high, count, *((found, share) if count else (None, None)))
        for low, high, count, found, share in zip(
            *(values.tolist() for values in (edges[:-1], edges[1:], counts, mean, accuracy)), strict=True
        )
    ]


def expected_calibration_error(confidence: Tensor, right: Tensor, bins: int = DEFAULT_BINS) -> float:
    """
    The mean difference between confidence and accuracy over bins of equal width, weighted by their samples (Guo et al.
    2017, Eq. 3); 0 without samples. Parameters as for `reliability`.
    """
    total = 0.0
    for entry in reliability(confidence, right, bins):
        if entry.confidence is not None and entry.accuracy is not None:
            total += entry.samples * abs(entry.confidence - entry.accuracy)
    return total / max(len(confidence), 1)


def exit_calibration_errors(trace: Trace) -> list[float]:
    """The expected calibration error of every exit, over the labelled samples of `trace`."""
    known = known_labels(trace.labels)
    errors = []
    for number in range(1, trace.num_exits + 1):
        signals = trace.exit_signals(number)
        right = signals.prediction == trace.labels
        errors.append(expected_calibration_error(signals.confidence[known], right[known]))
    return errors
