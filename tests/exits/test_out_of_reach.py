"""Numbers of a rule that no score can reach are named; weights that count against an exit's own label are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.comparison.operating_curve import TraceJudge
from beem_plugin.comparison.policy_files import NamedPolicy
from beem_plugin.comparison.policy_grid import expand
from beem_plugin.exits.policies import ExitPolicy


def said(config: dict[str, Any], with_ends: bool = True, exits: int = 4, labels: int = 2) -> str:
    policy = ExitPolicy.from_params(config)
    policy.bind(range(1, exits + 1), labels)
    return " ".join(policy.out_of_reach(with_ends))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "max_probability", "thresholds": 80}, "found 80, but the score must be at least that .* 0.5 to 1:"),
        ({"type": "max_probability", "thresholds": [0.9, 80, 0.9]}, "found 80, .* no sample can exit at exit 2"),
        ({"type": "margin", "thresholds": 1.5}, "0 to 1: no sample can exit before the last exit"),
        ({"type": "entropy", "thresholds": -0.1}, "found -0.1, .* below that and runs from 0 to 0.6931"),
        ({"type": "halting", "threshold": 2}, "halting.thresholds: found 2, .* above that and runs from 0 to 1"),
        ({"type": "halting", "threshold": 1}, "found 1, .* above"),
        ({"type": "similarity", "thresholds": 1}, "-1 to 1"),
        ({"type": "gate", "thresholds": 1.01}, "0 to 1"),
        ({"type": "predicted_error", "thresholds": 0}, "below that"),
        ({"type": "voting", "thresholds": 1}, "voting"),
        ({"type": "voting", "thresholds": 3, "exponent": 0}, "1 to 3|2 to 3"),
        ({"type": "cascaded_ensemble", "thresholds": 1}, "0.5 to 1"),
        ({"type": "beem", "weights": {"type": "cost", "scale": 0.1}, "thresholds": 0.7}, "0 to 0.6:"),
        ({"type": "patience", "patience": 3}, "found 3, but exits before the last of 4 agree 2 times"),
        ({"type": "confident_patience", "patience": 4, "entropy_threshold": 0.5}, "there are 3 exits before the last"),
        ({"type": "confident_patience", "patience": 1, "entropy_threshold": 0}, "runs from 0 to 1"),
        ({"type": "calibrated", "policy": {"type": "margin", "thresholds": 2}, "calibration": "none"}, "margin"),
        ({"type": "decaying_threshold", "policy": {"type": "margin", "thresholds": 2}}, "decaying_threshold"),
    ],
)
def test_what_no_score_can_reach_is_named(config: dict[str, Any], message: str) -> None:
    assert re.search(message, said(config)), said(config)


@pytest.mark.parametrize(
    "config",
    [
        {"type": "max_probability", "thresholds": 1},
        {"type": "max_probability", "thresholds": "never"},
        {"type": "max_probability", "thresholds": ["never", 0.9, "never"]},
        {"type": "max_probability", "thresholds": {"type": "best_on_validation"}},
        {"type": "entropy", "thresholds": 5},
        {"type": "halting"},
        # An exit's largest score grows with the exits that agree: 0.1, 0.3, 0.6.
        {"type": "beem", "weights": {"type": "cost", "scale": 0.1}, "thresholds": 0.6},
        {"type": "beem", "thresholds": 99},
        {"type": "patience", "patience": 2},
        {"type": "confident_patience", "patience": 3, "entropy_threshold": 0.1},
        {"type": "final"},
        {"type": "fixed_exit", "exit": 4},
    ],
)
def test_nothing_is_said_of_what_can_be_reached_or_is_not_known(config: dict[str, Any]) -> None:
    assert said(config) == ""


@pytest.mark.parametrize("config", [{"type": "patience", "patience": 1}, {"type": "margin", "thresholds": []}])
def test_a_network_of_one_exit_has_nothing_to_reach(config: dict[str, Any]) -> None:
    assert said(config, exits=1) == ""


def test_ends_of_a_range_are_what_a_grid_has() -> None:
    assert said({"type": "entropy", "thresholds": 0}) and not said({"type": "entropy", "thresholds": 0}, False)
    assert said({"type": "entropy", "thresholds": -1}, False)


def test_replay_warns_of_a_policy_and_of_a_sweep() -> None:
    trace = ExitTrace(torch.randn(20, 4, 2), torch.zeros(20, dtype=torch.int64))
    judged, _ = TraceJudge(trace).single({"type": "max_probability", "thresholds": 80})
    policy, (result,) = judged.policy, judged.results
    assert result.layer_speedup == 1 and result.warnings == policy.out_of_reach() != []
    variant = NamedPolicy("rule", "here", expand({"type": "entropy", "thresholds": {"grid": [-1, 0, 0.5]}}))
    (family,) = TraceJudge(trace).families(variant)
    assert [len(result.warnings) for result in family.results] == [1, 0, 0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -0.5, 1, 1], "weights.1: found -0.5, allowed: 0 or more"),
        ({"type": "cost", "scale": -0.1}, "weights.scale: found -0.1, allowed: 0 or more"),
        ({"type": "cost", "offset": -2}, "weights.offset: found -2, .*negative weight -0.1, allowed: -1 or more"),
    ],
)
def test_negative_weights_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        said({"type": "beem", "weights": weights, "thresholds": 1})
    # The released code's first weight is 0.
    said({"type": "beem", "weights": {"type": "cost", "offset": -1}, "thresholds": 0.1})
