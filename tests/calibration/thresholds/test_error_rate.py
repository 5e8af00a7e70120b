"""The paper's solver, the paper's mistake, and the grids."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from beem_plugin.calibration.thresholds import ErrorRate, ScoreTable, ThresholdStrategy
from beem_plugin.exits.policies import ExitPolicy
from beem_plugin.exits.threshold_grid import ThresholdGrid

from .tables import make_trace, random_table


def counterexample() -> ScoreTable:
    """50 easy samples, the last exit always right; 50 hard ones, 10 wrong there. Exit 1 takes the easy, 4 wrong."""
    right = torch.zeros(100, 2, dtype=torch.int64)
    right[:4, 0] = 1
    right[50:60, 1] = 1
    easy = (torch.arange(100) < 50).double()
    return ScoreTable(
        scores=torch.stack([easy, torch.zeros(100).double()], 1),
        predictions=right,
        confidences=torch.ones(100, 2).double(),
        labels=torch.zeros(100, dtype=torch.int64),
        exit_layers=[1, 2],
        higher_is_more_confident=True,
        strict=False,
    )


def reached_error(table: ScoreTable, thresholds: list[float]) -> float:
    return float((table.predictions_at(table.exits(thresholds)) != table.labels).double().mean())


def test_the_printed_guarantee_is_false_and_the_sound_constraint_holds() -> None:
    table = counterexample()
    printed = ErrorRate(grid=[1.0, "never"], constraint="final_error").fit(table)
    assert printed.thresholds == [1.0], "q_1 = 8 % is below p = 10 %"
    assert reached_error(table, printed.thresholds) == pytest.approx(0.14), "and yet the whole errs more than p"
    sound = ErrorRate(grid=[1.0, "never"], constraint="same_samples").fit(table)
    assert reached_error(table, sound.thresholds) <= 0.10


@pytest.mark.parametrize("seed", range(30))
def test_same_samples_never_exceeds_the_last_exits_error(seed: int) -> None:
    table = random_table(seed, samples=60)
    for grid in ("observed", 3, [0.25, 0.75, "never"]):
        fit = ErrorRate(grid=grid, constraint="same_samples", min_support=1).fit(table)
        assert reached_error(table, fit.thresholds) <= float(table.wrong[:, -1].double().mean()) + 1e-12


@pytest.mark.parametrize("constraint", ["final_error", "same_samples"])
@pytest.mark.parametrize("counting", ["sequential", "marginal"])
@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_against_trying_every_threshold(seed: int, monotone: bool, counting: str, constraint: str) -> None:
    table = random_table(seed, samples=80, strict=bool(seed % 2 == 0))
    grid: Any = "observed" if seed < 5 else [0.1 * k if seed % 2 else -0.1 * k for k in range(14)] + ["never"]
    strategy = ErrorRate(
        grid=grid, counting=counting, constraint=constraint, monotone=monotone, min_support=4, slack=0.02
    )
    fit = strategy.fit(table)
    gone = torch.zeros(len(table), dtype=torch.bool)
    p = float(table.wrong[:, -1].double().mean())
    for column, found in enumerate(fit.thresholds):
        counted = ~gone if counting == "sequential" else torch.ones_like(gone)
        chosen = math.inf
        for threshold in ThresholdGrid(grid).candidates(table, table.scores[counted, column])[::-1]:
            leaves = counted & table.passes(table.scores[:, column], threshold)
            total = int(leaves.sum())
            if total < 4:
                continue
            errors = int((table.wrong[:, column] & leaves).sum())
            allowed = p * total if constraint == "final_error" else int((table.wrong[:, -1] & leaves).sum())
            if errors <= allowed + 0.02 * total + 1e-9:
                chosen = threshold
            elif monotone:
                break
        assert found == chosen
        gone |= table.passes(table.scores[:, column], found)


def test_only_beem_has_the_papers_grid_by_default() -> None:
    trace = make_trace(800)
    beem = ExitPolicy.from_params({"type": "beem", "weights": "cost", "thresholds": {"type": "error_rate"}})
    allowed = {0.5 * k for k in range(1, 11)} | {"never"}
    assert set(beem.calibrate(trace).thresholds or []) <= allowed
    plain = ExitPolicy.from_params({"type": "max_probability", "thresholds": {"type": "error_rate"}})
    found = plain.calibrate(trace).thresholds or []
    seen = set(trace.logits.double().softmax(-1).amax(-1).flatten().tolist())
    assert any(value != "never" for value in found)
    assert all(value == "never" or min(abs(value - score) for score in seen) < 1e-12 for value in found)  # type: ignore[operator]


@pytest.mark.parametrize("policy", ["max_probability", "entropy", "margin", "beem"])
@pytest.mark.parametrize("strategy", ["error_rate", "best_on_validation"])
def test_every_rule_can_be_calibrated_by_name(policy: str, strategy: str) -> None:
    report = ExitPolicy.from_params({"type": policy, "thresholds": strategy}).calibrate(make_trace(400))
    assert report.error is not None and report.layer_speedup >= 1


def test_quantile_grids_are_observed_values_and_end_in_never() -> None:
    table = random_table(1, levels=30)
    values = ThresholdGrid(5).candidates(table, table.scores[:, 0])
    assert len(values) == 6 and values[-1] == math.inf
    assert set(values[:-1]) <= set(table.scores[:, 0].tolist())
    assert values[0] == table.scores[:, 0].min() and values[-2] == table.scores[:, 0].max()


def test_all_strategies_are_registered() -> None:
    names = {"fixed", "error_rate", "best_on_validation", "risk_controlled", "budget", "joint"}
    assert names <= set(ThresholdStrategy.list_available())
