"""The least error within a budget."""

import math

import numpy as np

from beem_plugin.calibration.thresholds.cost import CostStrategy
from beem_plugin.calibration.thresholds.joint import Joint
from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdFit, ThresholdStrategy


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
        loss, warnings = self.loss_of(table, "budget")
        cost, full, allowed = self.costs_of(table)
        path = ThresholdPath(table)
        mean_cost = path.sums(np.broadcast_to(cost, loss.shape)) / len(table)
        mean_loss = path.sums(loss) / len(table)
        feasible = mean_cost <= allowed * (1 + 1e-9)
        if feasible.any():
            point = int(np.where(feasible, mean_loss, math.inf).argmin())
        else:
            point = len(path) - 1
            warnings.append(self.unreachable(float(full / mean_cost[-1])))
        details = {
            "mean_cost": float(mean_cost[point]),
            "allowed_cost": allowed,
            "calibration_loss": float(mean_loss[point]),
            "calibration_speedup": float(full / mean_cost[point]),
        }
        return ThresholdFit(path.thresholds(point).tolist(), warnings, details)
