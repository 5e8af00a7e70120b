"""Intervals and tests that `evaluate`, `replay`, `ablate` and the comparing scripts show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from beem_plugin.calibration.report import binomial_interval
from beem_plugin.calibration.speed import full_depth_cost
from beem_plugin.common.metrics import count_metrics

Interval = tuple[float, float]
CONFIDENCE = 0.95
DRAWS = 1000
METRIC_DRAWS = 200

__all__ = [
    "Difference",
    "binomial_interval",
    "mcnemar",
    "mcnemar_of_counts",
    "mean_and_error",
    "metric_intervals",
    "over_tasks",
    "paired_difference",
    "percentile_interval",
    "resampled_counts",
    "speedup_interval",
]


@dataclass(frozen=True)
class Difference:
    """
    A paired difference between two rules.

    # Parameters

    difference : `float`
        First less second.
    interval : `tuple[float, float]`, optional
        95 %; `None` if one pair is all there is.
    p_value : `float`, optional
        Two-sided, of no difference.
    pairs : `int`
        Samples, or seeds.
    test : `str`
        `"mcnemar"` or `"paired_t"`.
    """

    difference: float
    interval: Interval | None
    p_value: float | None
    pairs: int
    test: str

    @property
    def within_noise(self) -> bool:
        """Whether the data do not tell the two apart at 5 %. One pair tells nothing."""
        return self.p_value is None or self.p_value > 1 - CONFIDENCE

    def text(self, factor: float = 100.0) -> str:
        """`-0.52 (p 0.300, within noise)`: the difference times `factor`."""
        p_value = "one pair" if self.p_value is None else f"p {self.p_value:.3f}"
        return f"{factor * self.difference:+.2f} ({p_value}{', within noise' if self.within_noise else ''})"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "within_noise": self.within_noise}


def mcnemar(first: np.ndarray, second: np.ndarray) -> Difference:
    """
    `mcnemar_of_counts` of two rules on the same samples.

    # Parameters

    first, second : `np.ndarray`
        `(samples,)` bool: whether each prediction is right.
    """
    return mcnemar_of_counts(int((first & ~second).sum()), int((~first & second).sum()), len(first))


def mcnemar_of_counts(wins: int, losses: int, samples: int) -> Difference:
    """
    Compares the accuracy of two rules on the same samples: exact McNemar test (1947), a binomial test on the samples
    that exactly one of the two gets right. The interval is Wald's with Agresti and Min's (2005) correction.

    # Parameters

    wins, losses : `int`
        Samples that only the first rule gets right, and only the second.
    samples : `int`
        All of them.
    """
    from scipy.stats import binomtest, norm

    p_value = float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    quantile = float(norm.ppf((1 + CONFIDENCE) / 2))
    b, c, n = wins + 0.5, losses + 0.5, samples + 2
    half = quantile * math.sqrt(b + c - (b - c) ** 2 / n) / n
    centre = (b - c) / n
    interval = (max(-1.0, centre - half), min(1.0, centre + half))
    return Difference((wins - losses) / max(samples, 1), interval, p_value, samples, "mcnemar")


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The mean difference of two rules over the same seeds, traces or images: paired t-test and its interval."""
    from scipy.stats import t

    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    mean, error = mean_and_error(differences.tolist())
    count = len(differences)
    if count < 2:
        return Difference(mean, None, None, count, "paired_t")
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * error
    p_value = float(2 * t.sf(abs(mean) / error, count - 1)) if error else float(mean == 0)
    return Difference(mean, (mean - half, mean + half), p_value, count, "paired_t")


def resampled_counts(counts: Sequence[int] | np.ndarray, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """
    Bootstrap samples (Efron, 1979) of data that are given as counts of cells: `(draws, cells)` counts.

    # Parameters

    counts : `Sequence[int]`
        `(cells,)`: how many samples fall into each, at least one in all.
    draws, seed : `int`, optional
    """
    counts = np.asarray(counts, dtype=np.int64)
    samples = int(counts.sum())
    return np.random.default_rng(seed).multinomial(samples, counts / samples, size=draws)


def metric_intervals(name: str, labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> dict[str, Interval]:
    """
    Bootstrap intervals of each number of a metric.

    # Parameters

    name : `str`
        A key of `common.metrics.METRICS`, of a classification.
    labels, predictions, counts : `np.ndarray`
        `(cells,)` each: how many samples have which label and prediction.
    """
    drawn = []
    for found in resampled_counts(counts, draws=METRIC_DRAWS):
        some = found > 0
        drawn.append(count_metrics(name, labels[some], predictions[some], found[some]))
    return {key: percentile_interval([values[key] for values in drawn]) for key in drawn[0]}


def percentile_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """The percentile interval of a statistic's values on bootstrap samples."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def speedup_interval(
    exit_histogram: Sequence[int],
    exit_layers: Sequence[int],
    exit_costs: Sequence[float] | None = None,
    seed: int = 0,
) -> Interval | None:
    """Bootstrap interval of the layer speed-up, arguments as of `histogram_summary`; `None` without samples."""
    if not sum(exit_histogram):
        return None
    costs = exit_costs or exit_layers
    drawn = resampled_counts(exit_histogram, seed=seed)
    mean = drawn @ np.asarray(costs, dtype=np.float64)
    return percentile_interval(full_depth_cost(exit_layers, costs) * drawn.sum(1) / mean)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; of one value the error is 0."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else 0.0


def over_tasks(per_task: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """The mean over tasks of the means over seeds; its error counts the seeds' scatter within each task."""
    found = [mean_and_error(values) for values in per_task.values()]
    return float(np.mean([mean for mean, _ in found])), math.sqrt(sum(error**2 for _, error in found)) / len(found)
