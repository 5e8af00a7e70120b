"""Base class of strategies that weigh a loss against the mean cost of a sample."""

import numpy as np

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdStrategy


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

    def __init__(self, speedup: float | None, cost: list[float] | None, budget: float | None) -> None:
        check_number("thresholds.speedup", 1.0 if speedup is None else speedup, 1)
        check_number("thresholds.budget", 1.0 if budget is None else budget, open_low=True)
        if cost is not None and (not cost or min(cost) <= 0 or sorted(cost) != list(cost)):
            raise ConfigurationError(
                f"thresholds.cost: found {cost}, allowed: rising numbers above 0, one for every exit"
            )
        self.speedup = speedup
        self.cost = cost
        self.budget = budget

    def costs_of(self, table: ScoreTable) -> tuple[np.ndarray, float, float]:
        """`(exits,)` cost by exit, that of full depth, and the allowed mean cost; infinite if there is no limit."""
        if self.cost is not None and len(self.cost) != table.num_exits:
            raise ConfigurationError(
                f"thresholds.cost: found a list of {len(self.cost)}, allowed: {table.num_exits} entries, one for every "
                "exit"
            )
        full = float(table.full_cost if self.cost is None else self.cost[-1])
        allowed = full / self.speedup if self.speedup is not None else np.inf if self.budget is None else self.budget
        return np.array(self.cost or table.costs, dtype=np.float64), full, allowed

    def loss_of(self, table: ScoreTable, strategy: str) -> tuple[np.ndarray, list[str]]:
        """
        `(samples, exits)` errors, squared of values; without labels disagreement with the last exit, and a warning.
        """
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

    def unreachable(self, fastest: float) -> str:
        wanted = (
            f"a speed-up of {self.speedup} over all layers of this network"
            if self.budget is None
            else f"a mean cost of {self.budget}"
        )
        return f"{wanted} cannot be reached; the fastest possible thresholds are used, with a speed-up of {fastest:.2f}"
