"""The allowed mean cost of a sample."""

from __future__ import annotations

import numpy as np

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.score_table import ScoreTable


class Budget:
    """
    # Parameters

    speedup : `float`, optional
        The cost of the whole network over the allowed mean cost.
    cost : `list[float]`, optional (default = the layers up to each exit, branches included)
        The cost of each exit, the last included: multiply-accumulates, measured milliseconds, ...
    budget : `float`, optional
        The allowed mean cost, in the unit of `cost`.
    """

    def __init__(self, speedup: float | None, cost: list[float] | None, budget: float | None) -> None:
        if speedup is not None and speedup < 1:
            raise ConfigurationError(f"thresholds.speedup: found {speedup}, allowed: 1 or more")
        if budget is not None and budget <= 0:
            raise ConfigurationError(f"thresholds.budget: found {budget}, allowed: a number above 0")
        if cost is not None and (not cost or min(cost) <= 0 or sorted(cost) != list(cost)):
            raise ConfigurationError(
                f"thresholds.cost: found {cost}, allowed: rising numbers above 0, one for every exit"
            )
        self.speedup = speedup
        self.cost = cost
        self.budget = budget

    def resolve(self, table: ScoreTable) -> tuple[np.ndarray, float | None]:
        """`(exits,)` cost by exit, and the allowed mean cost, `None` if there is no limit."""
        if self.cost is not None and len(self.cost) != table.num_exits:
            raise ConfigurationError(
                f"thresholds.cost: found a list of {len(self.cost)}, allowed: {table.num_exits} entries, one for every "
                "exit"
            )
        default = table.exit_layers if table.exit_costs is None else table.exit_costs
        cost = np.array(default if self.cost is None else self.cost, dtype=np.float64)
        if self.budget is not None:
            return cost, self.budget
        return cost, None if self.speedup is None else float(cost[-1]) / self.speedup

    def unreachable(self, fastest: float) -> str:
        wanted = f"a speed-up of {self.speedup}" if self.budget is None else f"a mean cost of {self.budget}"
        return f"{wanted} cannot be reached; the fastest possible thresholds are used, with a speed-up of {fastest:.2f}"
