"""
The metrics of GLUE, from two `(samples,)` arrays without unknown labels; 0.0 for degenerate input. They need numpy
alone: scikit-learn and `scipy.stats` take seconds to import.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, DataError, check_choice

Metric = Callable[..., dict[str, float]]


def pearson_spearman(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """`pearson`, `spearman` and their mean `pearson_spearman` (STS-B)."""
    pearson = spearman = 0.0
    if len(labels) > 1 and np.ptp(labels) != 0 and np.ptp(predictions) != 0:
        pearson = float(np.corrcoef(labels, predictions)[0, 1])
        spearman = float(np.corrcoef(_ranks(labels), _ranks(predictions))[0, 1])
    return {"pearson": pearson, "spearman": spearman, "pearson_spearman": (pearson + spearman) / 2}


def _ranks(values: np.ndarray) -> np.ndarray:
    """From 1; equal values share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[places]


def count_metrics(
    name: str, labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray | None = None
) -> dict[str, float]:
    """`compute_metrics` from `(cells,)` of a confusion matrix: label, prediction, number of samples (by default 1)."""
    counts = np.ones(len(labels), dtype=np.int64) if counts is None else np.asarray(counts)
    if name not in LABEL_METRICS:
        return compute_metrics(name, np.repeat(labels, counts), np.repeat(predictions, counts))
    return {key: float(values[0]) for key, values in many_metrics(name, labels, predictions, counts[None]).items()}


LABEL_METRICS = ("accuracy", "f1", "macro_f1", "matthews")
REGRESSION_METRICS = ("pearson_spearman",)
METRICS: dict[str, Metric] = {name: partial(count_metrics, name) for name in LABEL_METRICS}
METRICS["pearson_spearman"] = pearson_spearman

MAIN_SCORE = {name: name for name in METRICS} | {"f1": "accuracy_f1"}
"""The value of each metric that is used to compare exits and thresholds."""


def check_metric(key: str, name: str, is_regression: bool) -> None:
    """Raises a `ConfigurationError` that names `key` unless `name` is a metric of such a task."""
    allowed = REGRESSION_METRICS if is_regression else LABEL_METRICS
    check_choice(key, name, allowed)


def compute_metrics(name: str, labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Metric `name` of at least one sample: label indices, or values for `pearson_spearman`."""
    check_choice("metric", name, METRICS)
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.shape != predictions.shape or labels.ndim != 1 or not len(labels):
        raise DataError(f"metric {name!r}: labels {labels.shape} and predictions {predictions.shape} do not match")
    return METRICS[name](labels, predictions)


def many_metrics(name: str, labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """
    A metric of labels for many confusion matrices at once, each number `(matrices,)`: `accuracy`; for `f1` that of
    label 1 of two, and `accuracy_f1`, its mean with the accuracy (MRPC, QQP); for `macro_f1` the mean F1 over the
    labels that occur; for `matthews` the correlation R_K (Gorodkin, 2004), for two labels Matthews' (CoLA). `labels`
    and `predictions` are `(cells,)` int64, `counts` `(matrices, cells)` the samples of each cell.
    """
    is_right = labels == predictions
    found = {"accuracy": counts[:, is_right].sum(1) / counts.sum(1)}
    if name == "accuracy":
        return found
    known, places = np.unique(np.concatenate([labels, predictions]), return_inverse=True)

    def by_label(places: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return np.stack([np.bincount(places, row, len(known)) for row in counts])

    gold, predicted = by_label(places[: len(labels)], counts), by_label(places[len(labels) :], counts)
    hits = by_label(places[: len(labels)][is_right], counts[:, is_right])
    right, total = hits.sum(1), gold.sum(1)
    of_labels = 2 * hits / np.maximum(gold + predicted, 1)
    if name == "f1":
        if known.max() > 1:
            raise ConfigurationError("metric 'f1' is the F1 of label 1 of two; use 'macro_f1' for more than two labels")
        score = of_labels[:, known == 1].sum(1)
        return found | {"f1": score, "accuracy_f1": (found["accuracy"] + score) / 2}
    if name == "macro_f1":
        return found | {"macro_f1": of_labels.sum(1) / (gold + predicted > 0).sum(1)}
    covariance = right * total - (gold * predicted).sum(1)
    variances = [total**2 - (counts**2).sum(1) for counts in (gold, predicted)]
    return found | {"matthews": covariance / np.sqrt(np.maximum(variances[0] * variances[1], 1))}


def count_metric(key: str, labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> float:
    """The value `key` (`accuracy_f1`, `matthews`, ...) from a confusion matrix."""
    return count_metrics(metric_with_key(key), labels, predictions, counts)[key]


def metric_with_key(key: str) -> str:
    """The name of the metric whose result contains `key`."""
    named = {score: name for name, score in MAIN_SCORE.items()} | {name: name for name in METRICS}
    named |= {"pearson": "pearson_spearman", "spearman": "pearson_spearman"}
    check_choice("metric", key, named)
    return named[key]


def main_score(name: str, labels: np.ndarray, predictions: np.ndarray) -> float:
    """The value of metric `name` that is used to compare exits and thresholds; higher is better."""
    return compute_metrics(name, labels, predictions)[MAIN_SCORE[name]]


def known_labels(labels: Tensor) -> Tensor:
    """`(samples,)` bool. Unknown labels are -1 in int64 tensors, NaN in floating tensors of regression values."""
    return ~labels.isnan() if labels.is_floating_point() else labels >= 0
