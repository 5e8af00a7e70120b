from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.metrics import MAIN_SCORE, METRICS, compute_metrics, count_metrics, main_score, many_metrics


@pytest.mark.parametrize("num_labels", [2, 4])
def test_metrics_equal_sklearn(num_labels: int) -> None:
    random = np.random.default_rng(num_labels)
    for _ in range(20):
        labels, predictions = random.integers(num_labels, size=(2, 30))
        expected = metrics.accuracy_score(labels, predictions)
        assert compute_metrics("accuracy", labels, predictions)["accuracy"] == pytest.approx(expected)
        expected = metrics.matthews_corrcoef(labels, predictions)
        assert compute_metrics("matthews", labels, predictions)["matthews"] == pytest.approx(expected)
        expected = metrics.f1_score(labels, predictions, average="macro")
        assert compute_metrics("macro_f1", labels, predictions)["macro_f1"] == pytest.approx(expected)
        if num_labels == 2:
            values = compute_metrics("f1", labels, predictions)
            assert values["f1"] == pytest.approx(metrics.f1_score(labels, predictions))
            assert values["accuracy_f1"] == pytest.approx((values["accuracy"] + values["f1"]) / 2)


def test_correlations_equal_scipy_with_ties() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(6, size=50).astype(np.float32)
    predictions = labels + random.normal(size=50).round(1)
    values = compute_metrics("pearson_spearman", labels, predictions)
    assert values["pearson"] == pytest.approx(stats.pearsonr(labels, predictions)[0])
    assert values["spearman"] == pytest.approx(stats.spearmanr(labels, predictions)[0])
    assert values["pearson_spearman"] == pytest.approx((values["pearson"] + values["spearman"]) / 2)


@pytest.mark.parametrize(
    "name, labels, predictions, expected",
    [
        ("matthews", [0, 0, 0], [0, 0, 0], 0.0),
        ("matthews", [0, 1, 1], [1, 1, 1], 0.0),
        ("f1", [0, 0], [0, 0], 0.5),  # accuracy 1, F1 0
        ("f1", [1], [0], 0.0),
        ("pearson_spearman", [1.0, 2.0], [0.1, 0.1], 0.0),
        ("pearson_spearman", [3.0], [3.0], 0.0),
    ],
)
def test_degenerate_input_has_a_value_and_no_warning(
    name: str, labels: list[float], predictions: list[float], expected: float
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main_score(name, np.array(labels), np.array(predictions)) == expected


def test_every_metric_has_a_main_score_and_gives_plain_floats() -> None:
    labels, predictions = np.array([0, 1, 1]), np.array([0, 1, 0])
    for name in METRICS:
        values = compute_metrics(name, labels, predictions)
        assert MAIN_SCORE[name] in values
        assert all(type(value) is float for value in values.values())


def test_misuse_is_named() -> None:
    with pytest.raises(ConfigurationError, match="found 'matthew', allowed: matthews"):
        compute_metrics("matthew", np.array([0]), np.array([0]))
    with pytest.raises(ConfigurationError, match="macro_f1"):
        compute_metrics("f1", np.array([0, 2]), np.array([0, 1]))
    with pytest.raises(DataError, match="do not match"):
        compute_metrics("accuracy", np.array([0, 1]), np.array([0]))


def test_metrics_of_many_confusion_matrices_are_those_of_their_samples() -> None:
    random = np.random.default_rng(0)
    gold, predicted = np.indices((3, 3)).reshape(2, -1)
    for size, name in ((2, "f1"), (3, "accuracy"), (3, "macro_f1"), (3, "matthews")):
        inside = (gold < size) & (predicted < size)
        cells = gold[inside], predicted[inside]
        counts = random.integers(0, 4, (6, size**2)) + np.eye(6, size**2, dtype=int)
        counts[0] = np.eye(size**2, dtype=int)[0]  # one class in labels and predictions
        found = many_metrics(name, *cells, counts)
        for number, row in enumerate(counts):
            expected = compute_metrics(name, *(np.repeat(cell, row) for cell in cells))
            assert {key: values[number] for key, values in found.items()} == pytest.approx(expected, rel=1e-15)
            some = row > 0
            assert count_metrics(name, cells[0][some], cells[1][some], row[some]) == pytest.approx(expected, rel=1e-15)
    with pytest.raises(ConfigurationError, match="'macro_f1' for more than two"):
        count_metrics("f1", gold, predicted, np.ones(9, dtype=int))


def test_a_label_that_is_only_predicted_counts_in_macro_f1() -> None:
    found = compute_metrics("macro_f1", np.array([0, 0, 1]), np.array([0, 2, 1]))
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    # In a drawn matrix without that cell two labels occur.
    cells = np.array([0, 0, 1]), np.array([0, 2, 1])
    drawn = many_metrics("macro_f1", *cells, np.array([[2, 0, 1], [1, 1, 1]]))
    assert drawn["macro_f1"].tolist() == pytest.approx([1.0, 5 / 9])
