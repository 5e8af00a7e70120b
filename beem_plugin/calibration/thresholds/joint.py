"""Accuracy at a speed: the thresholds of all exits optimised together, or one threshold for all exits."""

import numpy as np

from beem_plugin.calibration.thresholds.cost import CostStrategy, Search
from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdFit, ThresholdStrategy


@ThresholdStrategy.register("joint")
class Joint(CostStrategy):
    """
    One threshold an exit, all optimised together instead of greedily one after the other: the least error at a wanted
    speed, or the least error + multiplier * cost, by coordinate descent (see `CoordinateDescent`). In a regression the
    error is the squared one. A wanted speed is met by bisection on the multiplier; between the two optima around the
    budget, the shares of samples that pass each exit are moved along the straight line from the slower to the faster.

    L-1 thresholds easily overfit. So they are fitted several times, each time without one of `folds` parts of the
    samples, and at each exit the share of passing samples is the mean of these fits' (bagging, Breiman 1996). To meet a
    budget, the share of samples that stay at an exit is then raised to a power, the same for all exits.

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
        check_number("thresholds.multiplier", multiplier)
        given = levels if isinstance(levels, list) else [] if levels is None else [levels]
        if levels == [] or any(one < 1 for one in given):
            raise ConfigurationError(f"thresholds.levels: found {levels}, allowed: integers from 1")
        super().__init__(speedup, cost, budget, max(given, default=None))
        check_number("thresholds.folds", folds, 1)
        self.multiplier = multiplier
        self.folds = folds
        self.seed = seed

    def fit(self, table: ScoreTable) -> ThresholdFit:
        search, share, warnings = self.search_of(table, "joint")
        multiplier = (self.multiplier or 0.0) if share is None else search.bracket(share)[1]
        thresholds = self._averaged(search, multiplier, share)
        loss, cost = search.means(thresholds)
        details = {"multiplier": multiplier, "calibration_loss": loss, "calibration_speedup": 1 / cost}
        return ThresholdFit(thresholds.tolist(), warnings, details)

    def _averaged(self, search: Search, multiplier: float, share: float | None) -> np.ndarray:
        samples, count = len(search.table), self.folds
        if count == 1 or samples < 2 * count:
            return search.thresholds(multiplier, share)
        fold = np.random.default_rng(self.seed).permutation(samples) % count
        parts = (search.select(np.flatnonzero(fold != number)) for number in range(count))
        mean = np.mean([search.rates.of(part.thresholds(multiplier, share)) for part in parts], axis=0)
        return search.rates.thresholds(mean) if share is None else search.within_budget(mean, share)


@ThresholdStrategy.register("budget")
class BudgetThresholds(CostStrategy):
    """
    The thresholds that reach a speed at the smallest error on the calibration data. By default one threshold for all
    exits, the exact optimum; with `per_exit`, one per exit by `Joint` with its defaults. The speed is reached on the
    calibration data; on other data of the same kind it varies. Without labels the disagreement with the last exit
    replaces the error. In a regression the error is the squared one.

    Registered as a `ThresholdStrategy` with name "budget".

    # Parameters

    speedup, cost, budget
        See `CostStrategy`; exactly one of `speedup` and `budget`.
    per_exit : `bool`, optional (default = `False`)
    """

    def __init__(
        self,
        speedup: float | None = None,
        cost: list[float] | None = None,
        budget: float | None = None,
        per_exit: bool = False,
    ) -> None:
        if (speedup is None) == (budget is None):
            raise ConfigurationError(
                f"thresholds: found speedup {speedup}, budget {budget}, allowed: exactly one of them"
            )
        super().__init__(speedup, cost, budget)
        self.joint = Joint(speedup=speedup, cost=cost, budget=budget) if per_exit else None

    def fit(self, table: ScoreTable) -> ThresholdFit:
        if self.joint is not None:
            return self.joint.fit(table)
        search, share, warnings = self.search_of(table, "budget")
        assert share is not None, "one of speedup and budget is given"
        thresholds = search.shared(share)
        full = float(table.full_cost if self.cost is None else self.cost[-1])
        exits = table.exits(thresholds.tolist()).numpy() - 1
        # In the unit of `cost`, in which layers add up exactly.
        mean_cost = float(np.array(self.cost or table.costs, dtype=np.float64)[exits].sum() / len(table))
        details = {
            "mean_cost": mean_cost,
            "allowed_cost": full / self.speedup if self.speedup else self.budget,
            "calibration_loss": search.means(thresholds)[0],
            "calibration_speedup": full / mean_cost,
        }
        return ThresholdFit(thresholds.tolist(), warnings, details)
