"""Simulates how often a bound on new data holds, on data whose true risk is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from beem_plugin.calibration.speed import depth_summary
from beem_plugin.calibration.thresholds.risk_controlled import RiskControlled
from beem_plugin.exits.score_table import ScoreTable


@dataclass
class Coverage:
    """
    # Parameters

    draws, violations, never : `int`
        Calibrations; those with a true risk above epsilon; those without early exits.
    mean_risk, mean_speedup : `float`
        Means over calibrations of the true risk, and of the layer speed-up in the population.
    """

    draws: int
    violations: int
    mean_risk: float
    mean_speedup: float
    never: int

    @property
    def violation_rate(self) -> float:
        return self.violations / self.draws


def simulate_coverage(
    population: ScoreTable, strategy: RiskControlled, samples: int, draws: int = 1000, seed: int = 0
) -> Coverage:
    """
    Takes `population` as the whole population, in which every risk is known exactly, and calibrates `draws` times on
    `samples` members drawn with replacement.
    """
    generator = np.random.default_rng(seed)
    losses = strategy.losses(population)
    rows = np.arange(len(population))
    risks, speedups, never = [], [], 0
    for _ in range(draws):
        drawn = torch.from_numpy(generator.integers(len(population), size=samples))
        exits = population.exits(strategy.fit(population.select(drawn)).thresholds)
        risks.append(float(losses[rows, exits.numpy() - 1].mean()))
        speedups.append(depth_summary(exits, population.exit_layers, population.costs)["layer_speedup"])
        never += bool((exits == population.num_exits).all())
    violations = sum(risk > strategy.epsilon for risk in risks)
    return Coverage(draws, violations, float(np.mean(risks)), float(np.mean(speedups)), never)
