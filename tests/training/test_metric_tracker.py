from __future__ import annotations

import pytest

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.evaluation import description_from_metrics, merge_metric_states
from beem_plugin.training.metric_tracker import MetricTracker


def test_patience_counts_epochs_that_are_not_better() -> None:
    tracker = MetricTracker("+accuracy", patience=2)
    stops = []
    for accuracy in (0.5, 0.6, 0.6, 0.7, 0.7, 0.1):
        tracker.add_metrics({"accuracy": accuracy})
        stops.append(tracker.should_stop_early())
    assert stops == [False, False, False, False, False, True]
    assert tracker.best_epoch == 4 and tracker.best_epoch_metrics == {"accuracy": 0.7}


def test_of_epochs_with_equal_scores_the_last_one_is_the_best() -> None:
    tracker = MetricTracker("+accuracy", patience=2)
    found = []
    for exit_1 in (0.1, 0.4, 0.6):
        tracker.add_metrics({"accuracy": 0.9, "exit_1_accuracy": exit_1})
        found.append((tracker.is_best_so_far, tracker.best_epoch_metrics["exit_1_accuracy"]))
    assert found == [(True, 0.1), (True, 0.4), (True, 0.6)] and tracker.should_stop_early()


def test_several_metrics_are_summed_with_their_signs() -> None:
    tracker = MetricTracker(["+accuracy", "-loss"])
    assert tracker.combined_score({"accuracy": 0.75, "loss": 0.5}) == 0.25


def test_score_that_is_no_number_is_never_the_best() -> None:
    tracker = MetricTracker("-loss")
    for loss in (float("nan"), 2.0, float("nan")):
        tracker.add_metrics({"loss": loss})
    assert tracker.best_epoch == 1 and tracker.best_score == -2.0


def test_unknown_metric_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="found 'f2', allowed: f1, accuracy, loss"):
        MetricTracker("+f2").add_metrics({"accuracy": 1.0, "loss": 1.0, "f1": 1.0})
    for wrong in ("", "loss", "+", []):
        with pytest.raises(ConfigurationError, match="validation_metric"):
            MetricTracker(wrong)
    with pytest.raises(ConfigurationError, match="patience: found 0"):
        MetricTracker(patience=0)


def test_metric_states_add_up() -> None:
    states = [{"right": 1, "labels": [1, 2]}, {"right": 2, "labels": [3]}, {"right": 0, "labels": []}]
    assert merge_metric_states(states) == {"right": 3, "labels": [1, 2, 3]}


def test_bar_leaves_out_single_exits_and_hidden_metrics() -> None:
    metrics = {"loss": 0.5, "exit_1_accuracy": 0.5, "loss_exit_12": 1.0, "_hidden": 1.0, "exits": 2.0}
    assert description_from_metrics(metrics) == "loss: 0.5000, exits: 2.0000"
