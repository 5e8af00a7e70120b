"""Accuracy-speed curves: interpolation and area."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beem_plugin.calibration.replay import outcomes_of
from beem_plugin.calibration.speed import histogram_summary
from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.metrics import count_metric
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import NEVER
from beem_plugin.exits.trace_interface import Trace

SPEEDS = (1.5, 2.0, 2.5)
REQUIRING = "an accuracy-speed curve"


@dataclass
class Curve:
    """
    Settings of one policy, from slow to fast: `accuracy` from 0 to 1, layer `speedup`, not falling, and `settings`:
    thresholds in the policy's own unit, `"never"`, lists of thresholds, or names.

    Between two settings the curve is that of drawing one of the two at random for each sample, which is linear in the
    depth (1 / speed-up): half the samples at 1x and half at 3x is 1.5x. So `at` and `area` interpolate in the depth,
    and every point can be reached; for metrics such as F1 that is an approximation. Several settings of the same speed
    count with their mean: the best of them would be selected on the test data.
    """

    accuracy: np.ndarray
    speedup: np.ndarray
    settings: list[Any]

    def __len__(self) -> int:
        return len(self.accuracy)

    def at(self, speedup: float) -> float | None:
        """Accuracy at a layer speed-up, by mixing its neighbours; `None` where no setting reaches."""
        if not len(self) or not self.speedup[0] <= speedup <= self.speedup[-1]:
            return None
        return float(between(*self._knots(), np.array([speedup]))[0])

    def area(self, low: float = 1.0, high: float = 3.0) -> float | None:
        """The mean accuracy in points (0 to 100) between two speed-ups; `None` if the curve does not reach both."""
        ends = self.at(low), self.at(high)
        if ends[0] is None or ends[1] is None:
            return None
        speed, accuracy = self._knots()
        inside = (speed > low) & (speed < high)
        s = np.concatenate([[low], speed[inside], [high]])
        a = np.concatenate([[ends[0]], accuracy[inside], [ends[1]]])
        return 100 * float(integrals(s, a).sum()) / (high - low)

    def line(self, points: int = 200) -> tuple[np.ndarray, np.ndarray]:
        """Speed-ups and accuracies for a plot: the settings and enough points between them."""
        speed, accuracy = self._knots()
        if len(speed) < 2:
            return speed, accuracy
        every = np.union1d(speed, np.linspace(speed[0], speed[-1], points))
        return every, between(speed, accuracy, every)

    def with_full_depth(self, accuracy: float) -> Curve:
        """The curve with full depth as its slow end, which every network can run; unchanged if it starts at 1x."""
        if len(self) and self.speedup[0] <= 1.0:
            return self
        return Curve(np.append(accuracy, self.accuracy), np.append(1.0, self.speedup), ["full depth", *self.settings])

    def scaled(self, factor: float) -> Curve:
        """With speeds relative to a network that is `factor` times as deep."""
        return Curve(self.accuracy, factor * self.speedup, self.settings)

    def _knots(self) -> tuple[np.ndarray, np.ndarray]:
        """One point a speed: of several settings with the same speed, their mean accuracy."""
        speed, which, count = np.unique(self.speedup, return_inverse=True, return_counts=True)
        return speed, np.bincount(which, weights=self.accuracy) / count

    def take(self, index: Sequence[int]) -> Curve:
        rows = np.asarray(index, dtype=np.int64)
        return Curve(self.accuracy[rows], self.speedup[rows], [self.settings[row] for row in rows.tolist()])

    def thinned(self, points: int) -> Curve:
        """About `points` settings at most, spread evenly over the depth (the inverse of the speed), ends included."""
        if len(self) <= points:
            return self
        targets = 1 / np.linspace(1 / self.speedup[0], 1 / self.speedup[-1], points)
        index = np.searchsorted(self.speedup, targets).clip(max=len(self) - 1)
        return self.take(np.unique(np.concatenate([[0], index, [len(self) - 1]])).tolist())

    def summary(self) -> dict[str, Any]:
        """`area` between 1x and 3x in points, `accuracy_at` 1.5x, 2x, 2.5x; `None` where the curve does not reach."""
        return {"area": self.area(), "accuracy_at": {str(speed): self.at(speed) for speed in SPEEDS}}


def joined(curves: Sequence[Curve | None], combine: Callable[..., np.ndarray], points: int = 60) -> Curve | None:
    """
    `combine` (mean, median) of curves, such as one a seed, at speeds that all reach; `None` where they share no two.
    """
    found = [curve for curve in curves if curve is not None and len(curve) > 1]
    low, high = (end(curve.speedup[place] for curve in found) if found else 1 for end, place in ((max, 0), (min, -1)))
    if len(found) < len(curves) or low >= high:
        return None
    # Even in the depth, not in the speed, which stretches the fast end.
    speeds = (1 / np.linspace(1 / low, 1 / high, points)).clip(low, high)
    values = np.array([between(*curve._knots(), speeds) for curve in found])
    return Curve(combine(values, 0), speeds, [None] * points)


def between(speed: np.ndarray, accuracy: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The accuracy `at` speed-ups between rising ones, `speed`: linear in the depth."""
    return np.asarray(np.interp(1 / at, 1 / speed[::-1], accuracy[::-1]))


def integrals(speed: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """
    The areas over the speed-up under `between`, one interval at a time: exact, as a line in the depth is a + b / s.
    With r = (s' - s) / s the interval from (s, A) to (s', A') has the area A (s' - s) + b (ln(1 + r) - r), where b = (A
    - A') / (1/s - 1/s').
    """
    s, following = speed[:-1], speed[1:]
    wide = following > s
    r = (following - s) / s
    b = np.divide(accuracy[:-1] - accuracy[1:], 1 / s - 1 / following, out=np.zeros_like(s), where=wide)
    return accuracy[:-1] * (following - s) + b * (np.log1p(r) - r)


def threshold_curve(table: ScoreTable, thresholds: Sequence[float | str] | None = None) -> Curve:
    """
    One threshold for all exits, swept over a policy's scores; every sample needs a label. `thresholds` are in the
    policy's own unit, `"never"` allowed; by default the curve is exact: it contains every setting that makes a
    difference.
    """
    table.require_labels(REQUIRING)
    return _swept(table, (~table.wrong).numpy(), thresholds)


def _swept(table: ScoreTable, right: np.ndarray, thresholds: Sequence[float | str] | None) -> Curve:
    """`threshold_curve` with `right`, `(samples, exits)` bool."""
    path = ThresholdPath(table)
    accuracy = path.sums(right.astype(np.int64)) / len(table)
    speedup = table.full_cost * len(table) / path.sums(np.broadcast_to(np.array(table.costs), right.shape))
    if thresholds is None:
        return Curve(accuracy, speedup, [native(table, path.threshold(point)) for point in range(len(path))])
    targets = np.array([np.inf if value == NEVER else table.orient(float(value)) for value in thresholds])
    order = np.argsort(-targets, kind="stable")
    points = path.point_of(targets[order])
    return Curve(accuracy[points], speedup[points], [thresholds[index] for index in order.tolist()])


def metric_curve(table: ScoreTable, metric: str, points: int = 400) -> Curve:
    """`threshold_curve` of another metric, of about `points` settings that are spread evenly over the depth."""
    table.require_labels(REQUIRING)
    finite = table.scores[:, :-1][table.scores[:, :-1].isfinite()]
    # Counts, as of patience: limits are whole numbers from 1.
    counted = not table.strict and bool((finite == finite.round()).all())
    whole = [table.orient(value) for value in finite.unique().tolist() if value > 0]
    thresholds: list[float | str] | None = [NEVER, *whole] if counted else None
    if metric == "accuracy":
        return threshold_curve(table, thresholds)
    # For the speeds only; the metric is computed below.
    thinned = _swept(table, np.zeros(table.predictions.shape, dtype=bool), thresholds).thinned(points)
    oriented = [math.inf if value == NEVER else table.orient(value) for value in thinned.settings]
    limits = np.repeat(np.array(oriented)[:, None], table.num_exits - 1, axis=1)
    outcomes = outcomes_of(table, limits)
    values = [count_metric(metric, found.labels, found.predictions, found.counts) for found in outcomes]
    return Curve(np.array(values), thinned.speedup, thinned.settings)


def vector_curve(table: ScoreTable, vectors: Sequence[Sequence[float]]) -> Curve:
    """One point for each of `vectors`: oriented thresholds, an entry for every exit but the last."""
    table.require_labels(REQUIRING)
    accuracy, speedup = [], []
    for found in outcomes_of(table, np.array(vectors, dtype=np.float64)):
        accuracy.append(float(found.counts[found.labels == found.predictions].sum() / len(table)))
        speedup.append(histogram_summary(found.exit_histogram, table.exit_layers, table.costs)["layer_speedup"])
    settings = [[native(table, value) for value in vector] for vector in vectors]
    order = np.argsort(speedup, kind="stable").tolist()
    return Curve(np.array(accuracy), np.array(speedup), settings).take(order)


def curve_of(policy: ExitPolicy, trace: Trace, thresholds: Sequence[float | str] | None = None) -> Curve:
    """
    The curve of a policy with thresholds: its score with one threshold for all exits, swept (see `threshold_curve`).
    The parameters of its score (weights, temperatures) must be fitted.
    """
    if not has_scores(policy):
        raise ConfigurationError(
            f"{policy.registered_name} has no score to compare with a threshold; give its settings as policies instead"
        )
    policy.bind(trace.exit_layers, trace.num_labels)
    return threshold_curve(policy.score_table(trace), thresholds)  # type: ignore[attr-defined]


def has_scores(policy: ExitPolicy) -> bool:
    """Whether the policy compares a score with thresholds, so that `curve_of` has something to sweep."""
    inner = getattr(policy, "policy", policy)
    return hasattr(policy, "score_table") and hasattr(inner, "score_table")


def native(table: ScoreTable, threshold: float) -> float | str:
    """An oriented threshold as in a config."""
    return table.orient(threshold) if np.isfinite(threshold) else NEVER
