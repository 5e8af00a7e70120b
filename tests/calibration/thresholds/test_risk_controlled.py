"""Where the sequence of tests stops, and what the report says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.thresholds import RiskControlled, ScoreTable, bounds
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policies import ExitPolicy

from .tables import make_table, make_trace, random_table

EVERY_METHOD: list[dict[str, Any]] = [
    {"method": "ltt_binomial"},
    {"method": "ltt_hoeffding_bentkus"},
    {"method": "ucb", "bound": "hoeffding_bentkus"},
    {"method": "ucb", "bound": "betting"},
    {"method": "crc"},
]


def staircase(losses_from_the_top: list[int]) -> ScoreTable:
    """Two exits; sample k has the k-th largest score, and leaving early makes it wrong where the list says 1."""
    samples = len(losses_from_the_top)
    wrong = torch.tensor(losses_from_the_top)
    return ScoreTable(
        scores=torch.stack([torch.arange(samples, 0, -1).double(), torch.zeros(samples).double()], 1),
        predictions=torch.stack([wrong, torch.zeros_like(wrong)], 1),
        confidences=torch.ones(samples, 2).double(),
        labels=torch.zeros(samples, dtype=torch.int64),
        exit_layers=[1, 2],
        higher_is_more_confident=True,
        strict=False,
    )


def leaving(table: ScoreTable, **config: Any) -> int:
    fit = RiskControlled(**config).fit(table)
    return int((table.exits(fit.thresholds) == 1).sum())


def test_stops_before_the_first_failure_not_at_it() -> None:
    # With n = 100 and epsilon 0.1, P(Bin(100, 0.1) <= k) <= 0.1 for k <= 5: the sixth loss is one too many.
    losses = [0] * 20 + [1] * 6 + [0] * 74
    assert bounds.binomial_p_value(np.array([5, 6]), 100, 0.1).tolist() == pytest.approx([0.0576, 0.1172], abs=1e-3)
    assert leaving(staircase(losses), epsilon=0.1, delta=0.1) == 25


def test_does_not_jump_over_a_failure() -> None:
    """A rescued sample later makes the unclipped risk fall again; what lies beyond the failure is not taken."""
    table = staircase([0] * 20 + [1] * 80 + [0] * 300)
    table.labels[100:] = 1  # the last exit is wrong there,
    table.predictions[100:, 0] = 1  # and the first one right
    fit = RiskControlled(epsilon=0.2, delta=0.1, method="ltt_hoeffding_bentkus", clip=False).fit(table)
    # The test is of losses from 0 to 1: after scaling k of 400 samples have lost 1, the others 1/2.
    sums = 200 + np.arange(81) / 2
    passed = int((bounds.hoeffding_bentkus_p_value(sums, 400, 0.6) <= 0.1).sum()) - 1
    assert 0 < passed < 80 and int((table.exits(fit.thresholds) == 1).sum()) == 20 + passed
    assert fit.details["empirical_risk"] == passed / 400
    assert passed / 400 < fit.details["risk_upper_bound"] <= 0.2


def test_takes_everything_when_nothing_is_lost() -> None:
    for config in EVERY_METHOD:
        assert leaving(staircase([0] * 200), epsilon=0.1, **config) == 200


@pytest.mark.parametrize("config", EVERY_METHOD)
@pytest.mark.parametrize("seed", range(4))
def test_single_threshold_against_brute_force(config: dict[str, Any], seed: int) -> None:
    """All thresholds one by one, from never on, until the first that fails."""
    table = random_table(seed, samples=120, levels=50)
    strategy = RiskControlled(epsilon=0.7, risk="disagreement", delta=0.1, seed=seed, **config)
    fit = strategy.fit(table)
    order = np.random.default_rng(seed).permutation(len(table))
    losses = (table.predictions != table.predictions[:, -1:]).double().numpy()[order]
    rows = np.arange(len(table))
    highest = np.zeros(len(table))
    best = None
    for threshold in [math.inf, *sorted({x for x in table.scores[:, :-1].flatten().tolist() if x > -math.inf})[::-1]]:
        exits = table.exits([threshold] * (table.num_exits - 1)).numpy()[order] - 1
        chosen = losses[rows, exits]
        highest = np.maximum(highest, chosen)
        if config["method"] == "crc":
            holds = (highest.sum() + 1) / (len(table) + 1) <= 0.7
        elif config.get("bound") == "betting":
            holds = bounds.betting_p_value(chosen, 0.7, 0.1) <= 0.1
        elif config["method"] == "ltt_binomial":
            holds = bounds.binomial_p_value(chosen.sum(), len(table), 0.7) <= 0.1
        else:
            holds = bounds.hoeffding_bentkus_p_value(chosen.sum(), len(table), 0.7) <= 0.1
        if not holds and threshold < math.inf:
            break
        best = threshold
    assert best is not None
    expected = table.exits([best] * (table.num_exits - 1))
    assert torch.equal(table.exits(fit.thresholds), expected)


def test_too_few_samples_disable_early_exits_and_report_the_number_needed() -> None:
    fit = RiskControlled(epsilon=0.02, delta=0.1).fit(staircase([0] * 113))
    assert fit.thresholds == [math.inf]
    assert "needs at least 114" in fit.warnings[0]
    assert leaving(staircase([0] * 114), epsilon=0.02, delta=0.1) == 114
    few = RiskControlled(epsilon=0.02, method="crc").fit(staircase([0] * 48))
    assert few.thresholds == [math.inf] and "needs at least 49" in few.warnings[0]
    assert leaving(staircase([0] * 49), epsilon=0.02, method="crc") == 49


def test_error_risk_below_the_last_exits_error_is_refused_loudly() -> None:
    table = staircase([0] * 200)
    table.labels[:100] = 1
    fit = RiskControlled(epsilon=0.1, risk="error").fit(table)
    assert fit.thresholds == [math.inf]
    assert "does not hold" in fit.warnings[0]


def test_disagreement_needs_no_labels_and_accuracy_loss_does() -> None:
    table = make_table(400)
    known = RiskControlled(epsilon=0.05, risk="disagreement").fit(table)
    table.labels = torch.full_like(table.labels, -1)
    assert RiskControlled(epsilon=0.05, risk="disagreement").fit(table).thresholds == known.thresholds
    with pytest.raises(ConfigurationError, match="labelled"):
        RiskControlled(epsilon=0.05).fit(table)


@pytest.mark.parametrize("policy", ["max_probability", "entropy", "beem", "margin"])
@pytest.mark.parametrize("per_exit", [False, True])
def test_thresholds_survive_the_config_and_replay_alike(policy: str, per_exit: bool) -> None:
    trace = make_trace(1500)
    rule = ExitPolicy.from_params(
        {"type": policy, "thresholds": {"type": "risk_controlled", "epsilon": 0.05, "per_exit": per_exit}}
    )
    report = rule.calibrate(trace)
    again = replay(ExitPolicy.from_params(report.policy), trace)
    assert torch.equal(again.exits, replay(rule, trace).exits)
    assert torch.equal(
        again.exits, rule.score_table(trace).exits([_oriented(rule, v) for v in report.thresholds or []])
    )
    assert report.layer_speedup > 1.05
    details = report.details
    assert details["empirical_risk"] <= details["risk_upper_bound"] <= 0.05
    if not per_exit:
        final = trace.logits[:, -1].argmax(-1)
        lost = ((again.predictions != trace.labels) & (final == trace.labels)).double().mean()
        assert details["empirical_risk"] == pytest.approx(float(lost))


def _oriented(rule: Any, value: float | str) -> float:
    if value == "never":
        return math.inf
    return float(value) if rule.higher_is_more_confident else -float(value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"epsilon": 0}, "epsilon: found 0"),
        ({"delta": 1}, "delta: found 1"),
        ({"method": "ltt"}, "method: found 'ltt'"),
        ({"risk": "accuracy"}, "risk: found 'accuracy'"),
        ({"clip": False}, "needs a 0/1 risk"),
        ({"clip": False, "risk": "error", "method": "ucb"}, "never negative"),
    ],
)
def test_wrong_configs(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RiskControlled(**config)
