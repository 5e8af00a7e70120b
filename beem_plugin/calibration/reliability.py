"""Reliability of confidences: the expected calibration error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

DEFAULT_BINS = 15


def reliability(confidence: Tensor, right: Tensor, bins: int = DEFAULT_BINS) -> list[dict[str, Any]]:
    """
    Of each bin of equal width its bounds `low` and `high` (included), `samples`, mean `confidence` and `accuracy`, the
    last two `None` without samples. `confidence` is `(samples,)` in [0, 1], `right` `(samples,)` bool.
    """
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    member = torch.bucketize(confidence.double(), edges[1:-1])
    counts = torch.bincount(member, minlength=bins)
    mean = torch.bincount(member, weights=confidence.double(), minlength=bins) / counts
    accuracy = torch.bincount(member, weights=right.double(), minlength=bins) / counts
    return [
        {
            **{"low": low, "high": high, "samples": count},
            **{"confidence": found if count else None, "accuracy": share if count else None},
        }
        for low, high, count, found, share in zip(
            *(values.tolist() for values in (edges[:-1], edges[1:], counts, mean, accuracy)), strict=True
        )
    ]


def expected_calibration_error(confidence: Tensor, right: Tensor, bins: int = DEFAULT_BINS) -> float:
    """
    The mean difference between confidence and accuracy over bins of equal width, weighted by their samples (Guo et al.
    2017, Eq. 3); 0 without samples. Parameters as for `reliability`.
    """
    filled = [entry for entry in reliability(confidence, right, bins) if entry["samples"]]
    total = sum(entry["samples"] * abs(entry["confidence"] - entry["accuracy"]) for entry in filled)
    return float(total / max(len(confidence), 1))
