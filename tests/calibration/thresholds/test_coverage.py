"""Bounds on new data, tried many times on a population whose risk is known."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from beem_plugin.calibration.thresholds import RiskControlled, ScoreTable

from .tables import make_table

DELTA, EPSILON, DRAWS = 0.1, 0.05, 1000
SLOW_DRAWS = 300


class Coverage(NamedTuple):
    violation_rate: float  # of calibrations, with a true risk above epsilon
    mean_risk: float  # of calibrations, true


def simulate_coverage(population: ScoreTable, strategy: RiskControlled, samples: int, draws: int) -> Coverage:
    """
    Takes `population` as the whole population, in which every risk is known exactly, and calibrates `draws` times on
    `samples` members drawn with replacement.
    """
    generator = np.random.default_rng(0)
    losses = strategy.losses(population)
    risks = []
    for _ in range(draws):
        drawn = torch.from_numpy(generator.integers(len(population), size=samples))
        exits = population.exits(strategy.fit(population.select(drawn)).thresholds)
        risks.append(float(losses[np.arange(len(population)), exits.numpy() - 1].mean()))
    return Coverage(sum(risk > strategy.epsilon for risk in risks) / draws, float(np.mean(risks)))


@pytest.fixture(scope="module")
def population() -> ScoreTable:
    return make_table(2000, num_exits=4, seed=3)


@pytest.mark.parametrize(
    ("config", "draws", "tightness"),
    [
        ({"method": "ltt_binomial"}, DRAWS, 0.55),
        ({"method": "ltt_binomial", "risk": "disagreement"}, DRAWS, 0.55),
        ({"method": "ltt_hoeffding_bentkus"}, SLOW_DRAWS, 0.4),
        ({"method": "ucb", "bound": "betting"}, SLOW_DRAWS, 0.3),
        ({"method": "ltt_binomial", "risk": "error", "epsilon": 0.2}, DRAWS, 0.7),
    ],
)
def test_the_risk_exceeds_epsilon_with_probability_delta_at_most(
    population: ScoreTable, config: dict[str, Any], draws: int, tightness: float
) -> None:
    strategy = RiskControlled(**{"epsilon": EPSILON, "delta": DELTA, **config})
    coverage = simulate_coverage(population, strategy, 400, draws)
    assert coverage.violation_rate <= DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / draws)
    assert coverage.mean_risk >= tightness * strategy.epsilon, "the bound must not be needlessly loose"


@pytest.mark.parametrize("config", [{"method": "ltt_binomial"}, {"method": "crc"}])
def test_one_threshold_an_exit(population: ScoreTable, config: dict[str, Any]) -> None:
    draws = 100
    strategy = RiskControlled(epsilon=EPSILON, delta=DELTA, per_exit=True, **config)
    coverage = simulate_coverage(population, strategy, 600, draws)
    if config["method"] == "crc":
        assert coverage.mean_risk <= EPSILON
    else:
        assert coverage.violation_rate <= DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / draws)
    assert coverage.mean_risk >= 0.4 * EPSILON


def test_conformal_risk_control_holds_in_expectation(population: ScoreTable) -> None:
    coverage = simulate_coverage(population, RiskControlled(epsilon=EPSILON, method="crc"), 200, DRAWS)
    assert 0.6 * EPSILON <= coverage.mean_risk <= EPSILON
    assert coverage.violation_rate > DELTA, "a bound in expectation is no bound with high probability"
