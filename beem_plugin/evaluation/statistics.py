"""Intervals and tests that `evaluate`, `replay`, `ablate` and the comparing scripts show."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from beem_plugin.calibration.report import binomial_interval
from beem_plugin.calibration.speed import full_depth_cost
from beem_plugin.common.metrics import many_metrics

Interval = tuple[float, float]
CONFIDENCE = 0.95
SPEED_DRAWS, METRIC_DRAWS = 1000, 200


@dataclass(frozen=True)
class Difference:
    """A paired difference between two rules."""

    difference: float  # first less second
    interval: Interval | None  # 95 %; `None` if one pair is all there is
    p_value: float | None  # two-sided, of no difference
    pairs: int  # samples, or seeds; of `crossed_t` samples
    test: str  # `"mcnemar"`, `"paired_t"` or `"crossed_t"`

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
    """`mcnemar_of_counts` of two rules on the same samples: `(samples,)` bool, whether each prediction is right."""
    return mcnemar_of_counts(int((first & ~second).sum()), int((~first & second).sum()), len(first))


def mcnemar_of_counts(wins: int, losses: int, samples: int) -> Difference:
    """
    Compares the accuracy of two rules on the same samples: exact McNemar test (1947), a binomial test on the samples
    that only the first rule gets right (`wins`) and only the second (`losses`). The interval is Wald's with Agresti and
    Min's (2005) correction.
    """
    from scipy.special import bdtr, ndtri

    p_value = min(1.0, 2 * float(bdtr(min(wins, losses), wins + losses, 0.5)))
    quantile = float(ndtri((1 + CONFIDENCE) / 2))
    b, c, n = wins + 0.5, losses + 0.5, samples + 2
    half = quantile * math.sqrt(b + c - (b - c) ** 2 / n) / n
    centre = (b - c) / n
    interval = (max(-1.0, centre - half), min(1.0, centre + half))
    return Difference((wins - losses) / max(samples, 1), interval, p_value, samples, "mcnemar")


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The mean difference of two rules over the same seeds, traces or images: paired t-test and its interval."""
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    count = len(differences)
    return t_difference(*mean_and_error(differences.tolist()), count - 1, count, "paired_t")


def crossed_difference(first: np.ndarray, second: np.ndarray) -> Difference:
    """
    The mean difference of two rules, both with several seeds on the same samples: `(seeds, samples)`, 1 where a
    prediction is right, 0 where it is wrong, or the probability of being right. Seeds and samples count as drawn: the
    squared standard error is the sum of theirs less that of what is left, which both hold (two-way clustering, Cameron,
    Gelbach and Miller 2011), and t has Satterthwaite's (1946) degrees of freedom. What is left is the least that either
    counts: of two seeds that happen to be close, the errors would be too small. One seed tells of the samples only.
    """
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    seeds, samples = differences.shape
    mean = float(differences.mean())
    parts = [(float(differences.mean(0).var(ddof=1)) / samples, samples - 1)] if samples > 1 else []
    if seeds > 1 and samples > 1:
        parts.append((float(differences.mean(1).var(ddof=1)) / seeds, seeds - 1))
        left = differences - differences.mean(0) - differences.mean(1, keepdims=True) + mean
        freedom = (seeds - 1) * (samples - 1)
        rest = float((left**2).sum()) / freedom / (seeds * samples)
        parts = [*((max(variance, rest), own) for variance, own in parts), (-rest, freedom)]
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts)
    return t_difference(mean, math.sqrt(variance), variance**2 / spread if spread else 1.0, samples, "crossed_t")


def t_difference(mean: float, error: float, freedom: float, pairs: int, test: str) -> Difference:
    """By Student's t with so many degrees of freedom. One pair tells nothing."""
    from scipy.special import stdtr, stdtrit

    if pairs < 2:
        return Difference(mean, None, None, pairs, test)
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    p_value = float(2 * stdtr(freedom, -abs(mean) / error)) if error else float(mean == 0)
    return Difference(mean, (mean - half, mean + half), p_value, pairs, test)


def resampled_counts(counts: Sequence[int] | np.ndarray, draws: int, seed: int = 0) -> np.ndarray:
    """Bootstrap samples (Efron, 1979) of `(cells,)` counts, at least one sample in all: `(draws, cells)`."""
    counts = np.asarray(counts, dtype=np.int64)
    samples = int(counts.sum())
    return np.random.default_rng(seed).multinomial(samples, counts / samples, size=draws)


def percentile_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """Of a statistic's values on bootstrap samples."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def metric_intervals(
    names: Iterable[str], labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray
) -> dict[str, Interval]:
    """
    Intervals of each number of the metrics `names` (see `common.metrics`): binomial of accuracy, bootstrap of the
    others. `(cells,)` each: how many samples, one or more, have which label and prediction.
    """
    found = {"accuracy": binomial_interval(int(counts[labels == predictions].sum()), int(counts.sum()))}
    draws = resampled_counts(counts, METRIC_DRAWS)
    for name in names:
        drawn = many_metrics(name, labels, predictions, draws)
        found |= {key: percentile_interval(values) for key, values in drawn.items() if key != "accuracy"}
    return found


def speedup_interval(
    exit_histogram: Sequence[int], exit_layers: Sequence[int], exit_costs: Sequence[float] | None = None
) -> Interval | None:
    """Bootstrap interval of the layer speed-up, arguments as of `histogram_summary`; `None` without samples."""
    if not sum(exit_histogram):
        return None
    costs = exit_costs or exit_layers
    drawn = resampled_counts(exit_histogram, SPEED_DRAWS)
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
