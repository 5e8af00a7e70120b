"""The least error within a budget."""

from __future__ import annotations

import math

import numpy as np

from beem_plugin.calibration.thresholds.cost import Budget
from beem_plugin.calibration.thresholds.joint import Joint, loss_of
from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdFit, ThresholdStrategy


@ThresholdStrategy.register("budget")
class BudgetThresholds(ThresholdStrategy):
    """
    The thresholds that reach a speed at the smallest error on the calibration data. By default one threshold for all
    exits, the exact optimum; with `per_exit`, one per exit by `Joint` with its defaults. The speed is reached on the
    calibration data; on other data of the same kind it varies. Without labels the disagreement with the last exit
    replaces the error. In a regression the error is the squared one.

    Registered as a `ThresholdStrategy` with name "budget".

    # Parameters

    speedup : `float`, optional
        Wanted layer speed-up, or, with `cost`, speed-up in those costs.
    cost : `list[float]`, optional (default = the layer that each exit reads)
        The cost of each exit, the last included: multiply-accumulates, or measured milliseconds.
    budget : `float`, optional
        Instead of `speedup`: the allowed mean cost per sample, in the unit of `cost`.
    per_exit : `bool`, optional (default = `False`)
    """

    serves_regression = True

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
        self.budget = Budget(speedup, cost, budget)
        self.joint = Joint(speedup=speedup, cost=cost, budget=budget) if per_exit else None

    def fit(self, table: ScoreTable) -> ThresholdFit:
        if self.joint is not None:
            return self.joint.fit(table)
        loss, warnings = loss_of(table, "budget")
        cost, allowed = self.budget.resolve(table)
        assert allowed is not None, "checked in __init__"
        path = ThresholdPath(table)
        mean_cost = path.sums(np.broadcast_to(cost, loss.shape)) / len(table)
        mean_loss = path.sums(loss) / len(table)
        feasible = mean_cost <= allowed * (1 + 1e-9)
        if feasible.any():
            point = int(np.where(feasible, mean_loss, math.inf).argmin())
        else:
            point = len(path) - 1
            warnings.append(self.budget.unreachable(float(cost[-1] / mean_cost[-1])))
        details = {
            "mean_cost": float(mean_cost[point]),
            "allowed_cost": allowed,
            "calibration_loss": float(mean_loss[point]),
            "calibration_speedup": float(cost[-1] / mean_cost[point]),
        }
        return ThresholdFit([path.threshold(point)] * (table.num_exits - 1), warnings, details)
