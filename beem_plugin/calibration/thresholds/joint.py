"""The thresholds of all exits optimised together, for accuracy at a speed."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch

from beem_plugin.calibration.thresholds.coordinate_descent import CoordinateDescent, PassRates
from beem_plugin.calibration.thresholds.cost import CostStrategy
from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdFit, ThresholdStrategy

LEVELS = (4, 8, 16, 32)
SHRINKAGE = (0.0, 0.25, 0.5, 0.75, 1.0)
MULTIPLIER_STEPS = 16
BLEND_STEPS = 32
FASTER_STEPS = 12
TOLERANCE = 0.5
"""Settings within so many standard errors of the best are as good; the one with the least shrinkage is taken."""


@ThresholdStrategy.register("joint")
class Joint(CostStrategy):
    """
    One threshold an exit, all optimised together instead of greedily one after the other: the least error at a wanted
    speed, or the least error + multiplier * cost, by coordinate descent (see `CoordinateDescent`). In a regression the
    error is the squared one. A wanted speed is met by bisection on the multiplier; between the two neighbouring optima
    around the budget, the shares of samples that pass each exit are moved along the straight line from the slower to
    the faster one.

    L-1 thresholds easily overfit. Two numbers are chosen by cross-validation inside the calibration data: `levels`, the
    number of score quantiles among which each exit chooses, and `shrinkage`, by how much every exit's share of passing
    samples is moved towards that under the best shared threshold (1 is the shared threshold itself). Shares are moved
    rather than thresholds, since scores that accumulate from exit to exit have another range at every exit. Settings
    that meet the same budget are compared by held-out error + multiplier * cost, at the multiplier that the budget
    corresponds to; among those within half a standard error of the best, the one with the least shrinkage, then the
    coarsest, is taken.

    Registered as a `ThresholdStrategy` with name "joint".

    # Parameters

    speedup, cost, budget
        See `CostStrategy`; exactly one of `speedup`, `budget` and `multiplier`.
    multiplier : `float`, optional
        The error rate equal in value to the cost of full depth.
    levels : `list[int]`, optional (default = `[4, 8, 16, 32]`)
    shrinkage : `list[float]`, optional (default = `[0, 0.25, 0.5, 0.75, 1]`)
    folds : `int`, optional (default = `5`)
    seed : `int`, optional (default = `0`)
        Of the division into folds.
    """

    def __init__(
        self,
        speedup: float | None = None,
        multiplier: float | None = None,
        cost: list[float] | None = None,
        budget: float | None = None,
        levels: list[int] | None = None,
        shrinkage: list[float] | None = None,
        folds: int = 5,
        seed: int = 0,
    ) -> None:
        if sum(value is not None for value in (speedup, multiplier, budget)) != 1:
            raise ConfigurationError(
                f"thresholds: found speedup {speedup}, budget {budget}, multiplier {multiplier}, allowed: exactly one"
            )
        if multiplier is not None and multiplier < 0:
            raise ConfigurationError(f"thresholds.multiplier: found {multiplier}, allowed: 0 or more")
        super().__init__(speedup, cost, budget)
        self.multiplier = multiplier
        self.levels = list(LEVELS if levels is None else levels)
        self.shrinkage = list(SHRINKAGE if shrinkage is None else shrinkage)
        if not self.levels or min(self.levels) < 1:
            raise ConfigurationError(f"thresholds.levels: found {levels}, allowed: integers from 1")
        if not self.shrinkage or min(self.shrinkage) < 0 or max(self.shrinkage) > 1:
            raise ConfigurationError(f"thresholds.shrinkage: found {shrinkage}, allowed: numbers from 0 to 1")
        if folds < 2:
            raise ConfigurationError(f"thresholds.folds: found {folds}, allowed: 2 or more")
        self.folds = folds
        self.seed = seed

    def fit(self, table: ScoreTable) -> ThresholdFit:
        loss, warnings = self.loss_of(table, "joint")
        cost, full, allowed = self.costs_of(table)
        search = _Search(table, loss, cost / full)
        multiplier, share = self.multiplier, None
        if multiplier is None:
            share = allowed / full
            multiplier = search.bracket(share, max(self.levels))[1]
            if search.path_cost[-1] > share + 1e-9:
                warnings.append(self.unreachable(float(1 / search.path_cost[-1])))
        levels, shrinkage, tried = self._choose(search, multiplier, share)
        thresholds = search.thresholds(multiplier, share, levels, shrinkage)
        if share is not None and search.means(thresholds)[1] > share + 1e-9:
            thresholds = search.affordable(share, levels, shrinkage)
        reached_loss, reached_cost = search.means(thresholds)
        details: dict[str, Any] = {
            "levels": levels,
            "shrinkage": shrinkage,
            "multiplier": multiplier,
            "cross_validation": tried,
            "calibration_loss": reached_loss,
            "calibration_speedup": 1 / reached_cost,
        }
        return ThresholdFit(thresholds.tolist(), warnings, details)

    def _choose(
        self, search: _Search, multiplier: float, share: float | None
    ) -> tuple[int, float, list[dict[str, Any]]]:
        """Levels and shrinkage by held-out loss, and all settings tried."""
        settings = [(levels, shrinkage) for levels in self.levels for shrinkage in self.shrinkage]
        table, loss, cost = search.table, search.loss, search.cost
        if len(settings) == 1 or len(table) < 2 * self.folds:
            return min(self.levels), max(self.shrinkage), []
        fold = np.random.default_rng(self.seed).permutation(len(table)) % self.folds
        held_out = np.empty((len(settings), len(table)))
        for number in range(self.folds):
            inside, outside = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
            fitted = _Search(table.select(torch.from_numpy(inside)), loss[inside], cost)
            rest = table.select(torch.from_numpy(outside))
            for row, setting in enumerate(settings):
                exits = rest.exits(fitted.thresholds(multiplier, share, *setting).tolist()).numpy() - 1
                held_out[row, outside] = loss[outside, exits] + multiplier * cost[exits]
        means = held_out.mean(axis=1)
        best = int(means.argmin())
        spread = (held_out - held_out[best]).std(axis=1) / math.sqrt(len(table))
        good = [row for row in range(len(settings)) if means[row] <= means[best] + TOLERANCE * spread[row]]
        chosen = min(good, key=lambda row: settings[row][::-1])
        tried = [
            {"levels": levels, "shrinkage": shrinkage, "held_out": float(mean)}
            for (levels, shrinkage), mean in zip(settings, means, strict=True)
        ]
        return *settings[chosen], tried


class _Search:
    """Optima on one set of samples; `cost` is relative to full depth. Results that settings share are cached."""

    def __init__(self, table: ScoreTable, loss: np.ndarray, cost: np.ndarray) -> None:
        self.table = table
        self.loss = loss
        self.cost = cost
        self.path = ThresholdPath(table)
        self.rates = PassRates(table)
        self.path_loss = self.path.sums(loss) / max(len(table), 1)
        self.path_cost = self.path.sums(np.broadcast_to(cost, loss.shape)) / max(len(table), 1)
        self.descent = functools.cache(lambda levels: CoordinateDescent(table, loss, cost, levels))
        self.optimum = functools.cache(self._optimum)
        self.within = functools.cache(self._within)

    def means(self, thresholds: np.ndarray) -> tuple[float, float]:
        """Mean loss and mean cost."""
        return self.descent(1).means(thresholds)

    def thresholds(self, multiplier: float, share: float | None, levels: int, shrinkage: float) -> np.ndarray:
        """
        The best thresholds, `shrinkage` of the way towards the best shared one: for mean loss + multiplier * cost, or
        within a mean cost of `share`.
        """
        shared = self.shared(multiplier, share)
        if shrinkage == 1:
            return shared
        own = self.optimum(multiplier, levels) if share is None else self.within(share, levels)
        return self.rates.between(own, shared, shrinkage)

    def shared(self, multiplier: float, share: float | None = None) -> np.ndarray:
        """The best shared threshold, once per exit; the fastest, if none is within `share`."""
        if share is None:
            return self.path.thresholds(int((self.path_loss + multiplier * self.path_cost).argmin()))
        affordable = self.path_cost <= share + 1e-9
        if not affordable.any():
            return self.path.thresholds(len(self.path) - 1)
        return self.path.thresholds(int(np.where(affordable, self.path_loss, math.inf).argmin()))

    def _optimum(self, multiplier: float, levels: int) -> np.ndarray:
        return self.descent(levels).best(multiplier, [self.shared(multiplier), self.path.thresholds(0)])

    def bracket(self, share: float, levels: int) -> tuple[float, float]:
        """A multiplier whose optimum costs more than `share` and one whose optimum does not, close to each other."""

        def fast(multiplier: float) -> bool:
            return self.means(self.optimum(multiplier, levels))[1] <= share + 1e-12

        slow, enough = 0.0, 1e-4
        if fast(slow):
            return 0.0, 0.0
        while not fast(enough) and enough < 1e4:
            slow, enough = enough, enough * 4
        for _ in range(MULTIPLIER_STEPS):
            middle = math.sqrt(max(slow, 1e-6) * enough)
            slow, enough = (slow, middle) if fast(middle) else (middle, enough)
        return slow, enough

    def affordable(self, share: float, levels: int, shrinkage: float) -> np.ndarray:
        """`thresholds` of faster parts, since a mixture can cost more than both of its parts."""
        for step in range(1, FASTER_STEPS + 1):
            thresholds = self.thresholds(0.0, share * (1 - step / 50), levels, shrinkage)
            if self.means(thresholds)[1] <= share + 1e-9:
                return thresholds
        return self.shared(0.0, share)

    def _within(self, share: float, levels: int) -> np.ndarray:
        """The least loss found whose mean cost is at most `share`; the fastest shared threshold if there is none."""
        slow, fast = (self.optimum(multiplier, levels) for multiplier in self.bracket(share, levels))
        offered = [self.rates.between(slow, fast, step / BLEND_STEPS) for step in range(BLEND_STEPS + 1)]
        shared = self.shared(0.0, share)
        evaluated = [(self.means(thresholds), thresholds) for thresholds in (shared, *offered)]
        feasible = [entry for entry in evaluated if entry[0][1] <= share + 1e-9]
        return min(feasible, key=lambda entry: entry[0])[1] if feasible else shared
