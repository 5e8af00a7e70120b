"""What calibration data say about the exits of a regression."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.report import ExitEvidence
from beem_plugin.calibration.trace import ExitTrace


def squared_errors(trace: ExitTrace, exits: Tensor) -> dict[str, Any]:
    """
    # Parameters

    trace : `ExitTrace`
        Of a regression.
    exits : `Tensor`
        `(samples,)` int64, 1-based: where each leaves.

    # Returns

    `dict[str, Any]`
        `mean_squared_error` of the values given, `final_mean_squared_error` of the last exit's; and `squared_errors`,
        for each exit what those who leave there err, and what the last exit errs on the same. Of samples with a label;
        `None` where there are none.
    """
    known = trace.known
    squared = (trace.predictions - trace.labels.double().unsqueeze(1)) ** 2  # (samples, exits)
    left = squared.gather(1, (exits - 1).unsqueeze(1)).squeeze(1)
    rows = []
    for number in range(1, trace.num_exits + 1):
        here = known & (exits == number)
        rows.append({"exit": number, "left": _mean(left[here]), "last_exit": _mean(squared[here, -1])})
    return {
        "mean_squared_error": _mean(left[known]),
        "final_mean_squared_error": _mean(squared[known, -1]),
        "squared_errors": rows,
    }


def value_evidence(trace: ExitTrace, exits: Tensor, thresholds: list[float | str] | None) -> list[ExitEvidence]:
    """How many leave at each exit: nothing is counted as an error where values are given."""
    counts = torch.bincount(exits[trace.known] - 1, minlength=trace.num_exits).tolist()
    given: list[float | str | None] = [*thresholds, None] if thresholds is not None else [None] * trace.num_exits
    return [
        ExitEvidence(exit=number, threshold=threshold, samples=samples, errors=None, final_errors=None)
        for number, (threshold, samples) in enumerate(zip(given, counts, strict=True), 1)
    ]


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None
