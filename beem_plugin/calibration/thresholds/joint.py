"""The thresholds of all exits optimised together, for accuracy at a speed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from beem_plugin.calibration.thresholds.coordinate_descent import CoordinateDescent, blend, just_above
from beem_plugin.calibration.thresholds.cost import Budget
from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.calibration.thresholds.risk import Risk
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdFit, ThresholdStrategy

LEVELS = (4, 8, 16, 32)
SHRINKAGE = (0.0, 0.25, 0.5, 0.75, 1.0)
MULTIPLIER_STEPS = 24
BLEND_STEPS = 64


@ThresholdStrategy.register("joint")
class Joint(ThresholdStrategy):
    """
    One threshold an exit, all optimised together instead of greedily one after the other: the least error at a wanted
    speed, or the least error + multiplier * cost. The optimiser is coordinate descent over the observed scores, exact
    in each exit (see `CoordinateDescent` for why not dynamic programming).

    A wanted speed is met by bisection on the multiplier. Between the two neighbouring optima around the budget, the
    thresholds are moved along the straight line from the slower to the faster one.

    L-1 thresholds easily overfit. Two numbers are chosen by cross-validation inside the calibration data:
    `levels`, the number of score quantiles among which each exit chooses, and `shrinkage`, the distance by which
    every threshold is moved towards the best shared one (1 is the shared threshold itself). Settings are compared
    by held-out error + multiplier * cost at the multiplier that the budget corresponds to; among those within one
    standard error of the best, the one closest to a shared threshold, then the coarsest, is taken.

    In a regression the error is the squared one.

    Registered as a `ThresholdStrategy` with name "joint".

    # Parameters

    speedup : `float`, optional
        Wanted layer speed-up, or, with `cost`, speed-up in those costs.
    multiplier : `float`, optional
        Instead of a speed: the error rate equal in value to the cost of the whole network.
    cost : `list[float]`, optional (default = the layer that each exit reads)
        The cost of each exit, the last included: multiply-accumulates, or measured milliseconds.
    budget : `float`, optional
        Instead of `speedup`: the allowed mean cost per sample, in the unit of `cost`.
    levels : `list[int]`, optional (default = `[4, 8, 16, 32]`)
    shrinkage : `list[float]`, optional (default = `[0, 0.25, 0.5, 0.75, 1]`)
    folds : `int`, optional (default = `5`)
    seed : `int`, optional (default = `0`)
        Of the division into folds.
    """

    serves_regression = True

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
        self.budget = Budget(speedup=speedup, cost=cost, budget=budget)
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
        loss, warnings = loss_of(table, "joint")
        cost, allowed = self.budget.resolve(table)
        share = cost / cost[-1]
        problem = _Problem(table, loss, share)
        if self.multiplier is not None:
            multiplier = self.multiplier
        else:
            assert allowed is not None, "one of the three is given, see __init__"
            multiplier = problem.multiplier_for(allowed / cost[-1], max(self.levels))
        levels, shrinkage, tried = self._choose(table, loss, share, multiplier)
        if allowed is None:
            thresholds = problem.shrunk(multiplier, levels, shrinkage)
        else:
            thresholds, reached = problem.within(allowed / cost[-1], levels, shrinkage)
            if not reached:
                warnings.append(self.budget.unreachable(problem.fastest()))
        reached_loss, reached_cost = problem.descent(levels).means(thresholds)
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
        self, table: ScoreTable, loss: np.ndarray, share: np.ndarray, multiplier: float
    ) -> tuple[int, float, list[dict[str, Any]]]:
        """Levels and shrinkage by held-out loss, and all settings tried."""
        settings = [(levels, shrinkage) for levels in self.levels for shrinkage in self.shrinkage]
        if len(settings) == 1 or len(table) < 2 * self.folds:
            return min(self.levels), max(self.shrinkage), []
        fold = np.random.default_rng(self.seed).permutation(len(table)) % self.folds
        held_out = np.empty((len(settings), len(table)))
        for number in range(self.folds):
            inside, outside = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
            fitted = _Problem(table.select(torch.from_numpy(inside)), loss[inside], share)
            held_out_descent = CoordinateDescent(
                table.select(torch.from_numpy(outside)), loss[outside], share, levels=1
            )
            for row, (levels, shrinkage) in enumerate(settings):
                exits = held_out_descent.exits(fitted.shrunk(multiplier, levels, shrinkage))
                held_out[row, outside] = held_out_descent.loss[np.arange(len(exits)), exits] + multiplier * share[exits]
        means = held_out.mean(axis=1)
        best = int(means.argmin())
        spread = (held_out - held_out[best]).std(axis=1) / math.sqrt(len(table))
        good = [row for row in range(len(settings)) if means[row] <= means[best] + spread[row]]
        chosen = min(good, key=lambda row: (-settings[row][1], settings[row][0]))
        tried = [
            {"levels": levels, "shrinkage": shrinkage, "held_out": float(mean)}
            for (levels, shrinkage), mean in zip(settings, means, strict=True)
        ]
        return *settings[chosen], tried


class _Problem:
    """Optima on one set of samples by multiplier, levels and shrinkage; common results are cached."""

    def __init__(self, table: ScoreTable, loss: np.ndarray, share: np.ndarray) -> None:
        self.table = table
        self.loss = loss
        self.share = share
        self.early = table.num_exits - 1
        self.path = ThresholdPath(table)
        self.path_loss = self.path.sums(loss) / max(len(table), 1)
        self.path_cost = self.path.sums(np.broadcast_to(share, loss.shape)) / max(len(table), 1)
        self._descents: dict[int, CoordinateDescent] = {}
        self._optima: dict[tuple[float, int], np.ndarray] = {}
        self._top = just_above(table)

    def descent(self, levels: int) -> CoordinateDescent:
        if levels not in self._descents:
            self._descents[levels] = CoordinateDescent(self.table, self.loss, self.share, levels)
        return self._descents[levels]

    def shared(self, multiplier: float) -> np.ndarray:
        """The best shared threshold, once per exit."""
        point = int((self.path_loss + multiplier * self.path_cost).argmin())
        return np.full(self.early, self.path.threshold(point))

    def optimum(self, multiplier: float, levels: int) -> np.ndarray:
        key = (multiplier, levels)
        if key not in self._optima:
            starts = [self.shared(multiplier), np.full(self.early, math.inf)]
            self._optima[key] = self.descent(levels).best(multiplier, starts)
        return self._optima[key]

    def shrunk(self, multiplier: float, levels: int, shrinkage: float) -> np.ndarray:
        shared = self.shared(multiplier)
        if shrinkage == 1:
            return shared
        return self.blend(self.optimum(multiplier, levels), shared, shrinkage)

    def blend(self, first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
        return blend(first, second, share, self._top)

    def multiplier_for(self, allowed: float, levels: int) -> float:
        """The smallest multiplier found whose optimum has at most the allowed mean cost."""
        return self._bracket(allowed, levels, 0.0)[1]

    def _bracket(self, allowed: float, levels: int, shrinkage: float) -> tuple[float, float]:
        """A multiplier that is too slow and one that is fast enough, close to each other."""

        def fast(multiplier: float) -> bool:
            return self.descent(levels).means(self.shrunk(multiplier, levels, shrinkage))[1] <= allowed + 1e-12

        slow, enough = 0.0, 1e-4
        if fast(slow):
            return 0.0, 0.0
        while not fast(enough) and enough < 1e4:
            slow, enough = enough, enough * 4
        for _ in range(MULTIPLIER_STEPS):
            middle = math.sqrt(max(slow, 1e-6) * enough)
            slow, enough = (slow, middle) if fast(middle) else (middle, enough)
        return slow, enough

    def within(self, allowed: float, levels: int, shrinkage: float) -> tuple[np.ndarray, bool]:
        """The least loss found whose mean cost is at most `allowed`; the fastest, and `False`, if none is."""
        point = self._cheapest_loss(allowed)
        offered = [] if point is None else [np.full(self.early, self.path.threshold(point))]
        if shrinkage < 1:
            slow, enough = self._bracket(allowed, levels, shrinkage)
            first, second = (self.shrunk(multiplier, levels, shrinkage) for multiplier in (slow, enough))
            offered += [self.blend(first, second, step / BLEND_STEPS) for step in range(BLEND_STEPS + 1)]
        evaluated = [(self.descent(levels).means(thresholds), thresholds) for thresholds in offered]
        feasible = [entry for entry in evaluated if entry[0][1] <= allowed + 1e-9]
        if feasible:
            return min(feasible, key=lambda entry: entry[0])[1], True
        return np.full(self.early, self.path.threshold(len(self.path) - 1)), False

    def _cheapest_loss(self, allowed: float) -> int | None:
        feasible = self.path_cost <= allowed + 1e-9
        return int(np.where(feasible, self.path_loss, math.inf).argmin()) if feasible.any() else None

    def fastest(self) -> float:
        """The largest speed-up that the policy allows."""
        return float(1 / self.path_cost[-1])


def loss_of(table: ScoreTable, strategy: str) -> tuple[np.ndarray, list[str]]:
    """
    `(samples, exits)` the loss: errors, or without labels the disagreement with the last exit; in a
    regression squared distances.
    """
    if len(table) == 0:
        raise ConfigurationError(f"{strategy}: found no calibration sample, needed: at least one")
    known = table.known
    if bool(known.all()):
        if table.is_regression:
            return table.squared_errors(table.labels).double().numpy(), []
        return Risk("error").per_exit(table), []
    unknown = int((~known).sum())
    warning = (
        f"{strategy}: {unknown} of {len(table)} samples have no label; disagreement with the last exit is minimised "
        "instead of the error"
    )
    if table.is_regression:
        return table.squared_errors(table.predictions[:, -1]).double().numpy(), [warning]
    return Risk("disagreement").per_exit(table), [warning]
