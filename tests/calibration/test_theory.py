"""Theorem 3.1 with numbers that can be checked by hand."""

from __future__ import annotations

import pytest
import torch

from beem_plugin.calibration.theory import exit_bound, theory_report
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policies import ExitPolicy

from .thresholds.tables import make_trace


def trace_of(predictions: list[list[int]], labels: list[int], confidences: list[list[float]]) -> ExitTrace:
    """Two labels; the logit of the predicted one is its confidence's log-odds."""
    chosen = torch.tensor(predictions)
    odds = torch.logit(torch.tensor(confidences))
    logits = torch.nn.functional.one_hot(chosen, 2) * odds.unsqueeze(-1)
    return ExitTrace(logits.float(), torch.tensor(labels))


def test_by_hand() -> None:
    # Sample 2 changes its label at exit 2; threshold 0.8.
    trace = trace_of(
        predictions=[[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 0, 1], [1, 0, 0]],
        labels=[0, 0, 0, 0, 0, 0],
        confidences=[
            [0.9, 0.9, 0.9],
            [0.6, 0.9, 0.9],
            [0.6, 0.9, 0.9],
            [0.9, 0.9, 0.9],
            [0.6, 0.6, 0.9],
            [0.6, 0.6, 0.9],
        ],
    )
    report = theory_report(ExitPolicy.from_params({"type": "max_probability", "thresholds": 0.8}), trace)
    assert report["final_error"] == pytest.approx(1 / 6)
    assert [entry["error"] for entry in report["exits"]] == pytest.approx([3 / 6, 1 / 6, 1 / 6])
    second = report["exits"][1]
    # Without a change up to exit 2: samples 0, 1, 3, 4, of which 1 leaves there. With one: 2 and 5, of which 2 leaves.
    assert second["a"] == pytest.approx((1 / 2) / (1 / 4))
    assert second["b"] == pytest.approx(3)
    assert second["bound"] == pytest.approx(2 / (2 + 5 * 3))
    assert second["holds"] is False
    assert (second["leaving"], second["leaving_error"], second["leaving_final_error"]) == (2, 0.0, 0.0)
    assert second["overthinking"] == pytest.approx(1 / 6)
    assert second["underthinking"] == pytest.approx(1 / 6)
    assert report["exits"][0]["a"] is None, "there is no label change before exit 2"
    assert report["condition_holds"] is False
    # Leaves: 0 at 1 right, 1 at 2 right, 2 at 2 right, 3 at 1 wrong, 4 at 3 wrong, 5 at 3 right.
    assert report["error"] == pytest.approx(2 / 6)
    assert not report["better_than_final"]


def test_only_samples_with_one_label_change_are_compared_with_those_without() -> None:
    # Of two samples without a change the first leaves at exit 3, of three with one the third; the fourth has two.
    predictions = [[0, 0, 0], [0, 0, 0], [0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 1, 1]]
    sure_at = [3, 1, 3, 3, 1, 1]
    confidences = [[0.9 if number >= first else 0.6 for number in (1, 2, 3)] for first in sure_at]
    policy = ExitPolicy.from_params({"type": "max_probability", "thresholds": 0.8})
    report = theory_report(policy, trace_of(predictions, [0, 1, 0, 1, 0, 1], confidences))
    assert report["exits"][2]["a"] == pytest.approx((1 / 3) / (1 / 2))


def test_bound() -> None:
    assert exit_bound(1.0, 1.0, 0.5, 7) == pytest.approx(0.5)
    assert exit_bound(1.0, 2.0, 0.1, 3) == pytest.approx(1 / (1 + 9 * 4))
    assert exit_bound(1.0, 2.0, 0.0, 3) == 0.0
    assert exit_bound(0.0, 2.0, 0.1, 3) == 0.0
    assert exit_bound(None, 2.0, 0.1, 3) is None


def test_overthinking_and_its_reverse_make_up_the_difference_in_error() -> None:
    trace = make_trace(500)
    report = theory_report(ExitPolicy.from_params({"type": "beem", "weights": "cost", "thresholds": 0.7}), trace)
    for entry in report["exits"]:
        assert entry["error"] - report["final_error"] == pytest.approx(entry["underthinking"] - entry["overthinking"])
    assert sum(entry["leaving"] for entry in report["exits"]) == 500
    assert report["exits"][0]["exit"] == 1


def test_unlabelled_samples_do_not_count() -> None:
    trace = make_trace(50)
    labels = torch.cat([trace.labels, torch.full((50,), -1)])
    doubled = ExitTrace(torch.cat([trace.logits, trace.logits]), labels)
    policy = ExitPolicy.from_params({"type": "max_probability", "thresholds": 0.8})
    assert theory_report(policy, doubled) == theory_report(policy, trace)
    with pytest.raises(ConfigurationError, match="labels"):
        theory_report(policy, doubled.select(range(50, 100)))
