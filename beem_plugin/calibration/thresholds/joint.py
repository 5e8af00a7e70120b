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
from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdFit, ThresholdStrategy

MULTIPLIER_STEPS = 16
BLEND_STEPS = 32
MOST_CHANGE = 4.0  # to meet a budget, shares of staying samples are raised to a power between this and its inverse
CHANGE_STEPS = 12


@ThresholdStrategy.register("joint")
class Joint(CostStrategy):
    """
    One threshold an exit, all optimised together instead of greedily one after the other: the least error at a wanted
    speed, or the least error + multiplier * cost, by coordinate descent (see `CoordinateDescent`). In a regression the
    error is the squared one. A wanted speed is met by bisection on the multiplier; between the two neighbouring optima
    around the budget, the shares of samples that pass each exit are moved along the straight line from the slower to
    the faster one.

    L-1 thresholds easily overfit. So they are fitted several times, each time without one of `folds` parts of the
    samples, and at each exit the share of passing samples is the mean of these fits' (bagging, Breiman 1996). Shares
    are averaged and not thresholds, since scores that accumulate from exit to exit have another range at every exit. To
    meet a budget, the share of samples that stay at an exit is then raised to a power, the same for all exits.

    Registered as a `ThresholdStrategy` with name "joint".

    # Parameters

    speedup, cost, budget
        See `CostStrategy`; exactly one of `speedup`, `budget` and `multiplier`.
    multiplier : `float`, optional
        The error rate equal in value to the cost of full depth.
    levels : `int` or `list[int]`, optional (default = all scores)
        The number of score quantiles among which each exit chooses; of a list the largest.
    folds : `int`, optional (default = `5`)
        1 fits once, on all samples.
    seed : `int`, optional (default = `0`)
        Of the division into folds.
    shrinkage : `list[float]`, optional
        Has no effect; accepted for configs of earlier releases.
    """

    def __init__(
        self,
        speedup: float | None = None,
        multiplier: float | None = None,
        cost: list[float] | None = None,
        budget: float | None = None,
        levels: int | list[int] | None = None,
        shrinkage: list[float] | None = None,
        folds: int = 5,
        seed: int = 0,
    ) -> None:
        if sum(value is not None for value in (speedup, multiplier, budget)) != 1:
            raise ConfigurationError(
                f"thresholds: found speedup {speedup}, budget {budget}, multiplier {multiplier}, allowed: exactly one"
            )
        check_number("thresholds.multiplier", multiplier or 0.0)
        super().__init__(speedup, cost, budget)
        self.multiplier = multiplier
        given = levels if isinstance(levels, list) else [] if levels is None else [levels]
        if levels == [] or any(one < 1 for one in given):
            raise ConfigurationError(f"thresholds.levels: found {levels}, allowed: integers from 1")
        self.levels = max(given, default=None)
        check_number("thresholds.folds", folds, 1)
        self.folds = folds
        self.seed = seed

    def fit(self, table: ScoreTable) -> ThresholdFit:
        loss, warnings = self.loss_of(table, "joint")
        cost, full, allowed = self.costs_of(table)
        search = _Search(table, loss, cost / full, self.levels)
        multiplier, share = self.multiplier, None
        if multiplier is None:
            share = allowed / full
            multiplier = search.bracket(share)[1]
            if search.path_cost[-1] > share + 1e-9:
                warnings.append(self.unreachable(float(1 / search.path_cost[-1])))
        thresholds = self._averaged(search, multiplier, share)
        reached_loss, reached_cost = search.means(thresholds)
        details: dict[str, Any] = {
            "multiplier": multiplier,
            "calibration_loss": reached_loss,
            "calibration_speedup": 1 / reached_cost,
        }
        return ThresholdFit(thresholds.tolist(), warnings, details)

    def _averaged(self, search: _Search, multiplier: float, share: float | None) -> np.ndarray:
        table, count = search.table, self.folds
        if count == 1 or len(table) < 2 * count:
            return search.thresholds(multiplier, share)
        fold = np.random.default_rng(self.seed).permutation(len(table)) % count
        rates = []
        for number in range(count):
            rows = np.flatnonzero(fold != number)
            part = _Search(table.select(torch.from_numpy(rows)), search.loss[rows], search.cost, self.levels)
            rates.append(search.rates.of(part.thresholds(multiplier, share)))
        mean = np.mean(rates, axis=0)
        return search.rates.thresholds(mean) if share is None else search.within_budget(mean, share)


class _Search:
    """Optima on one set of samples; `cost` is relative to full depth."""

    def __init__(self, table: ScoreTable, loss: np.ndarray, cost: np.ndarray, levels: int | None) -> None:
        self.table, self.loss, self.cost = table, loss, cost
        self.path = ThresholdPath(table)
        self.rates = PassRates(table)
        self.path_loss = self.path.sums(loss) / max(len(table), 1)
        self.path_cost = self.path.sums(np.broadcast_to(cost, loss.shape)) / max(len(table), 1)
        self.descent = CoordinateDescent(table, loss, cost, levels)
        self.means = self.descent.means
        self.optimum = functools.cache(self._optimum)

    def thresholds(self, multiplier: float, share: float | None) -> np.ndarray:
        """The best thresholds: for mean loss + multiplier * cost, or within a mean cost of `share`."""
        return self.optimum(multiplier) if share is None else self._within(share)

    def shared(self, share: float) -> np.ndarray:
        """The best threshold for all exits within `share`, once per exit; the fastest, if there is none."""
        affordable = self.path_cost <= share + 1e-9
        if not affordable.any():
            return self.path.thresholds(len(self.path) - 1)
        return self.path.thresholds(int(np.where(affordable, self.path_loss, math.inf).argmin()))

    def _optimum(self, multiplier: float) -> np.ndarray:
        shared = self.path.thresholds(int((self.path_loss + multiplier * self.path_cost).argmin()))
        return self.descent.best(multiplier, [shared, self.path.thresholds(0)])

    def bracket(self, share: float) -> tuple[float, float]:
        """A multiplier whose optimum costs more than `share` and one whose optimum does not, close to each other."""

        def fast(multiplier: float) -> bool:
            return self.means(self.optimum(multiplier))[1] <= share + 1e-12

        slow, enough = 0.0, 1e-4
        if fast(slow):
            return 0.0, 0.0
        while not fast(enough) and enough < 1e4:
            slow, enough = enough, enough * 4
        for _ in range(MULTIPLIER_STEPS):
            middle = math.sqrt(max(slow, 1e-6) * enough)
            slow, enough = (slow, middle) if fast(middle) else (middle, enough)
        return slow, enough

    def _within(self, share: float) -> np.ndarray:
        """The least loss found whose mean cost is at most `share`; the fastest shared threshold if there is none."""
        slow, fast = (self.optimum(multiplier) for multiplier in self.bracket(share))
        offered = [self.rates.between(slow, fast, step / BLEND_STEPS) for step in range(BLEND_STEPS + 1)]
        shared = self.shared(share)
        evaluated = [(self.means(thresholds), thresholds) for thresholds in (shared, *offered)]
        feasible = [entry for entry in evaluated if entry[0][1] <= share + 1e-9]
        return min(feasible, key=lambda entry: entry[0])[1] if feasible else shared

    def within_budget(self, rates: np.ndarray, share: float) -> np.ndarray:
        """The slowest thresholds within `share` whose rates are `rates` with the staying shares raised to a power."""
        found, low, high = None, 1 / MOST_CHANGE, MOST_CHANGE
        for _ in range(CHANGE_STEPS):
            power = math.sqrt(low * high)
            thresholds = self.rates.thresholds(1 - (1 - rates) ** power)
            if self.means(thresholds)[1] <= share + 1e-9:
                found, high = thresholds, power
            else:
                low = power
        return self.shared(share) if found is None else found
