"""Whether the inputs of `predict` look like the data that the exit policy was calibrated on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from beem_plugin.archival import Archive
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.predictors.predictor import JsonDict

BINS = 1000
"""Of confidences from 0 to 1, so that a stream of any length takes constant memory."""
LEAST_DISTANCE, MOST_PROBABLE = 0.1, 0.001
"""A difference is reported from this distance on, and up to this p-value."""


class ShiftCheck:
    """Compares confidences at exits with those on the calibration data, by Kolmogorov and Smirnov's test."""

    def __init__(self, policy: ExitPolicy, trace: ExitTrace) -> None:
        self.expected = counts(replay(policy, trace).log_probabilities.exp().amax(1).numpy())
        self.found = np.zeros(BINS, dtype=np.int64)

    @classmethod
    def of(cls, archive: Archive) -> ShiftCheck | None:
        """`None` for an archive without a calibration trace, and where outputs are no probabilities of a label."""
        policy, calibration = getattr(archive.model, "exit_policy", None), archive.calibration
        trace = None if calibration is None else calibration.trace
        if not isinstance(policy, ExitPolicy) or trace is None or not trace.has_logits or trace.is_regression:
            return None
        return cls(policy, trace)

    def add(self, predictions: Sequence[JsonDict]) -> None:
        known = [max(one["probabilities"]) for one in predictions if isinstance(one.get("probabilities"), list)]
        self.found += counts(np.array(known))

    def statistic(self) -> tuple[float, float]:
        """The distance, and its p-value, 1 below the distance that is reported."""
        n, m = int(self.found.sum()), int(self.expected.sum())
        if not n or not m:
            return 0.0, 1.0
        distance = float(np.abs(self.found.cumsum() / n - self.expected.cumsum() / m).max())
        if distance < LEAST_DISTANCE:
            return distance, 1.0
        from scipy.special import kolmogorov

        size = math.sqrt(n * m / (n + m))
        return distance, float(kolmogorov((size + 0.12 + 0.11 / size) * distance))

    def warning(self) -> str:
        """A line for the terminal; empty without a difference."""
        distance, p_value = self.statistic()
        if p_value > MOST_PROBABLE:
            return ""
        means = [float(one @ (np.arange(BINS) + 0.5)) / BINS / one.sum() for one in (self.found, self.expected)]
        return (
            f"warning: the inputs exit with other confidences than the calibration data (mean {means[0]:.3f} against "
            f"{means[1]:.3f}, distance {distance:.2f}): thresholds may not hold for them; calibrate on data of their "
            "kind (without labels: thresholds of type ucb)"
        )


def counts(confidences: np.ndarray) -> np.ndarray:
    return np.bincount((confidences * BINS).astype(np.int64).clip(0, BINS - 1), minlength=BINS)
