"""Least error within a budget: one threshold exactly, all thresholds together at least as well."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.thresholds import BudgetThresholds, Joint, ScoreTable, ThresholdFit
from beem_plugin.calibration.thresholds.coordinate_descent import CoordinateDescent, PassRates
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policies import ExitPolicy

from .tables import make_deepening_trace, make_table, make_trace, random_table


def loss_and_cost(table: ScoreTable, thresholds: list[float], cost: list[float]) -> tuple[float, float]:
    exits = table.exits(thresholds)
    wrong = (table.predictions_at(exits) != table.labels).double().mean()
    return float(wrong), float(torch.tensor(cost, dtype=torch.float64)[exits - 1].mean())


@pytest.mark.parametrize("seed", range(8))
def test_budget_against_trying_every_threshold(seed: int) -> None:
    table = random_table(seed, samples=60, levels=12)
    cost = [1.0, 1.5, 4.0, 10.0]
    fit = BudgetThresholds(cost=cost, budget=6.0).fit(table)
    possible = []
    for threshold in [math.inf, *np.unique(table.scores[:, :-1].numpy()).tolist()]:
        loss, spent = loss_and_cost(table, [threshold] * 3, cost)
        if threshold > -math.inf and spent <= 6.0:
            possible.append(loss)
    loss, spent = loss_and_cost(table, fit.thresholds, cost)
    if possible:
        assert spent <= 6.0 and loss == pytest.approx(min(possible))
        assert not fit.warnings
        # The speed-up is over the cost of the last exit.
        assert BudgetThresholds(cost=cost, speedup=10 / 6).fit(table).thresholds == fit.thresholds
    else:
        assert "cannot be reached" in fit.warnings[0]


@pytest.mark.parametrize("policy", ["max_probability", "entropy", "beem"])
@pytest.mark.parametrize("per_exit", [False, True])
def test_the_wanted_speed_is_reached_and_kept_in_replay(policy: str, per_exit: bool) -> None:
    trace = make_trace(1200)
    rule = ExitPolicy.from_params(
        {"type": policy, "thresholds": {"type": "budget", "speedup": 1.8, "per_exit": per_exit}}
    )
    report = rule.calibrate(trace)
    assert 1.8 - 1e-9 <= report.layer_speedup <= 1.9
    again = ExitPolicy.from_params(report.policy)
    assert torch.equal(replay(again, trace).exits, replay(rule, trace).exits)
    assert report.details["calibration_speedup"] == pytest.approx(report.layer_speedup)
    assert report.details["calibration_loss"] == pytest.approx(report.error)


def test_without_labels_disagreement_is_minimised_and_said() -> None:
    table = make_table(300)
    of_last = replace(table, labels=table.predictions[:, -1])
    table.labels = torch.full_like(table.labels, -1)
    for strategy in (BudgetThresholds(speedup=1.5), Joint(speedup=1.5)):
        fit = strategy.fit(table)
        assert "have no label" in fit.warnings[0]
        assert fit.details["calibration_speedup"] >= 1.5 - 1e-9
        assert fit.thresholds == strategy.fit(of_last).thresholds


def test_coordinate_descent_finds_the_optimum_of_small_problems() -> None:
    """Every list of thresholds tried; a local optimum is allowed to be slightly worse, seldom."""
    excess = []
    for seed in range(12):
        table = random_table(3 * seed + 1, samples=25, num_exits=4, levels=4)
        loss = table.wrong.double().numpy()
        cost = np.array([1.0, 2.0, 3.0, 4.0]) / 4
        descent = CoordinateDescent(table, loss, cost)
        found = descent.objective(descent.best(0.2, [np.full(3, math.inf), np.full(3, 0.5)]), 0.2)
        grid = [math.inf, *np.unique(table.scores[:, :-1].numpy())]
        best = min(descent.objective(np.array(choice), 0.2) for choice in itertools.product(grid, repeat=3))
        assert found >= best - 1e-12
        excess.append(found - best)
    assert sum(value > 1e-12 for value in excess) <= 3
    assert max(excess) < 0.05


def test_descent_never_makes_it_worse() -> None:
    table = make_table(300)
    descent = CoordinateDescent(table, table.wrong.double().numpy(), np.arange(1.0, 7) / 6)
    for start in (0.5, 0.8, 0.99, math.inf):
        begin = np.full(5, start)
        assert descent.objective(descent.descend(begin, 0.1), 0.1) <= descent.objective(begin, 0.1) + 1e-12


def test_joint_is_no_worse_than_one_threshold_on_the_calibration_data() -> None:
    table = make_table(1500)
    one = BudgetThresholds(speedup=2.0).fit(table)
    together = Joint(speedup=2.0, folds=1).fit(table)
    assert together.details["calibration_speedup"] >= 2.0 - 1e-9
    assert together.details["calibration_loss"] <= one.details["calibration_loss"] + 1e-12


def useless_scores(seed: int) -> ScoreTable:
    """All exits give the same label, right in 80 % of the samples, and scores say nothing: only noise can be fitted."""
    generator = torch.Generator().manual_seed(seed)
    wrong = (torch.rand(200, 1, generator=generator) < 0.2).to(torch.int64)
    return ScoreTable(
        scores=torch.rand(200, 6, generator=generator).double(),
        predictions=(wrong + (torch.rand(200, 6, generator=generator) < 0.05)) % 2,
        confidences=torch.ones(200, 6).double(),
        labels=torch.zeros(200, dtype=torch.int64),
        exit_layers=list(range(1, 7)),
        higher_is_more_confident=True,
        strict=False,
    )


def held_out(fit: ThresholdFit, table: ScoreTable, multiplier: float) -> float:
    """Error + multiplier * cost on other samples of the kind that `fit` was made on."""
    loss, cost = loss_and_cost(table, fit.thresholds, [layer / table.exit_layers[-1] for layer in table.exit_layers])
    return loss + multiplier * cost


def test_joint_is_no_worse_than_one_threshold_where_scores_are_noise() -> None:
    excess = []
    for seed in range(4):
        table, other = useless_scores(seed), useless_scores(seed + 100)
        together = Joint(speedup=2.0).fit(table)
        one = BudgetThresholds(speedup=2.0).fit(table)
        excess.append(held_out(together, other, 0.1) - held_out(one, other, 0.1))
    assert np.mean(excess) < 0.01


@pytest.mark.parametrize("weights", ["accuracy", "cost"])
def test_joint_is_as_good_as_coordinate_descent_on_other_samples_where_scores_accumulate(weights: str) -> None:
    against_plain, against_one = [], []
    for seed in range(4):
        rule = ExitPolicy.from_params({"type": "beem", "weights": weights, "thresholds": "never"})
        rule.calibrate(make_deepening_trace(250, seed))
        table = rule.score_table(make_deepening_trace(250, seed))  # type: ignore[attr-defined]
        other = rule.score_table(make_deepening_trace(2000, 100 + seed))  # type: ignore[attr-defined]
        plain = Joint(speedup=1.7, folds=1).fit(table)
        found = held_out(Joint(speedup=1.7).fit(table), other, plain.details["multiplier"])
        one = BudgetThresholds(speedup=1.7).fit(table)
        against_plain.append(found - held_out(plain, other, plain.details["multiplier"]))
        against_one.append(found - held_out(one, other, plain.details["multiplier"]))
    assert np.mean(against_plain) < 0.004
    assert np.mean(against_one) < -0.01


def test_the_shares_of_passing_samples_are_the_mean_of_fits_without_a_part() -> None:
    rule = ExitPolicy.from_params({"type": "beem", "weights": "cost", "thresholds": "never"})
    rule.calibrate(make_deepening_trace(400, 1))
    table = rule.score_table(make_deepening_trace(400, 1))  # type: ignore[attr-defined]
    strategy = Joint(multiplier=0.2, folds=4)
    part = np.random.default_rng(0).permutation(400) % 4
    rates = PassRates(table)
    fits = [
        Joint(multiplier=0.2, folds=1).fit(table.select(torch.from_numpy(np.flatnonzero(part != k)))) for k in range(4)
    ]
    single = [rates.of(np.array(fit.thresholds)) for fit in fits]
    assert np.ptp(single, axis=0).max() > 0.02
    found = rates.of(np.array(strategy.fit(table).thresholds))
    assert found == pytest.approx(np.mean(single, axis=0), abs=1.5 / len(table))


def test_settings_of_earlier_releases_are_accepted() -> None:
    table = make_table(200)
    old = Joint(speedup=1.5, levels=[8, 16], shrinkage=[0, 0.5]).fit(table)
    assert old.thresholds == Joint(speedup=1.5, levels=16).fit(table).thresholds


@pytest.mark.parametrize("strategy", [Joint(multiplier=0.2), Joint(speedup=1.5), BudgetThresholds(speedup=1.5)])
def test_tiny_data(strategy: Any) -> None:
    for samples in (1, 2, 7):
        fit = strategy.fit(random_table(1, samples=samples))
        assert len(fit.thresholds) == 3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BudgetThresholds(), "exactly one"),
        (lambda: Joint(speedup=2.0, multiplier=0.1), "exactly one"),
        (lambda: BudgetThresholds(speedup=0.5), "speedup: found 0.5"),
        (lambda: BudgetThresholds(speedup=2.0, cost=[2.0, 1.0]), "rising"),
        (lambda: BudgetThresholds(speedup=2.0, cost=[1.0, 2.0]).fit(random_table(1)), "4 entries"),
        (lambda: Joint(speedup=2.0, levels=[8, 0]), "levels: found .8, 0., allowed: integers from 1"),
        (lambda: Joint(speedup=2.0, folds=0), "folds: found 0, allowed: 1 or more"),
    ],
)
def test_wrong_configs(build: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()
