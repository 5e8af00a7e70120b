"""Base class of strategies that weigh a loss against the mean cost of a sample, and their search."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch

from beem_plugin.calibration.thresholds.coordinate_descent import CoordinateDescent, PassRates, means
from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdStrategy

MULTIPLIER_STEPS = 16
BLEND_STEPS = 32
MOST_CHANGE = 4.0  # to meet a budget, shares of staying samples are raised to a power between this and its inverse
CHANGE_STEPS = 12


class CostStrategy(ThresholdStrategy):
    """
    # Parameters

    speedup : `float`, optional
        The cost of full depth over the allowed mean cost.
    cost : `list[float]`, optional (default = the layers up to each exit, branches included)
        The cost of each exit, the last included: multiply-accumulates, or measured milliseconds.
    budget : `float`, optional
        Instead of `speedup`: the allowed mean cost per sample, in the unit of `cost`.
    """

    serves_regression = True

    def __init__(
        self, speedup: float | None, cost: list[float] | None, budget: float | None, levels: int | None = None
    ) -> None:
        check_number("thresholds.speedup", speedup, 1)
        check_number("thresholds.budget", budget, open_low=True)
        if cost is not None and (not cost or min(cost) <= 0 or sorted(cost) != list(cost)):
            raise ConfigurationError(
                f"thresholds.cost: found {cost}, allowed: rising numbers above 0, one for every exit"
            )
        self.speedup = speedup
        self.cost = cost
        self.budget = budget
        self.levels = levels

    def search_of(self, table: ScoreTable, strategy: str) -> tuple[Search, float | None, list[str]]:
        """The search on a table, the allowed share of the cost of full depth, `None` without a limit, and warnings."""
        if self.cost is not None and len(self.cost) != table.num_exits:
            raise ConfigurationError(
                f"thresholds.cost: found a list of {len(self.cost)}, allowed: {table.num_exits} entries, one for every "
                "exit"
            )
        loss, warnings = loss_of(table, strategy)
        full = float(table.full_cost if self.cost is None else self.cost[-1])
        search = Search(table, loss, np.array(self.cost or table.costs, dtype=np.float64) / full, self.levels)
        if self.speedup is None and self.budget is None:
            return search, None, warnings
        share = 1 / (self.speedup or 1.0) if self.budget is None else self.budget / full
        if search.path_cost[-1] > share + 1e-9:
            wanted = f"a speed-up of {self.speedup} over all layers of this network"
            wanted = wanted if self.budget is None else f"a mean cost of {self.budget}"
            warnings.append(
                f"{wanted} cannot be reached; the fastest possible thresholds are used, with a speed-up of "
                f"{1 / search.path_cost[-1]:.2f}"
            )
        return search, share, warnings


def loss_of(table: ScoreTable, strategy: str) -> tuple[np.ndarray, list[str]]:
    """`(samples, exits)` errors, squared of values; without labels disagreement with the last exit, and a warning."""
    table.require_samples(strategy)
    unknown = int((~table.known).sum())
    if table.is_regression:
        loss = table.squared_errors(table.predictions[:, -1] if unknown else table.labels)
    else:
        loss = table.disagrees if unknown else table.wrong
    warning = (
        f"{strategy}: {unknown} of {len(table)} samples have no label; disagreement with the last exit is "
        "minimised instead of the error"
    )
    return loss.double().numpy(), [warning] if unknown else []


class Search:
    """Optima on one set of samples; `cost` is relative to full depth."""

    def __init__(self, table: ScoreTable, loss: np.ndarray, cost: np.ndarray, levels: int | None) -> None:
        self.table, self.loss, self.cost, self.levels = table, loss, cost, levels
        self.path = ThresholdPath(table)
        self.path_loss = self.path.sums(loss) / max(len(table), 1)
        self.path_cost = self.path.sums(np.broadcast_to(cost, loss.shape)) / max(len(table), 1)
        self.optimum = functools.cache(self._optimum)

    @functools.cached_property
    def rates(self) -> PassRates:
        return PassRates(self.table)

    @functools.cached_property
    def descent(self) -> CoordinateDescent:
        return CoordinateDescent(self.table, self.loss, self.cost, self.levels)

    def select(self, rows: np.ndarray) -> Search:
        """The search on the samples at `rows`."""
        return Search(self.table.select(torch.from_numpy(rows)), self.loss[rows], self.cost, self.levels)

    def means(self, thresholds: np.ndarray) -> tuple[float, float]:
        """Mean loss and mean cost."""
        return means(self.table, self.loss, self.cost, thresholds)

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
