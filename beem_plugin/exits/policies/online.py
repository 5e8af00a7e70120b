"""A threshold that is learned while predicting, without labels."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.policies.adapting import AdaptingPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.threshold_grid import ThresholdGrid
from beem_plugin.exits.threshold_strategy import NEVER
from beem_plugin.exits.trace_interface import Trace


@ExitPolicy.register("online")
class OnlineThresholds(AdaptingPolicy):
    """
    Learns one threshold for all exits while predicting, as CeeBERT (Bajpai and Hanawal 2024). A bandit selects it from
    `grid` before each batch (see `AdaptingPolicy`); at batch size 1, before each sample. The release subtracts the
    confidence of the first exit from the reward; it is the same for every threshold, and left out here. The strategy
    `ucb` fits the same threshold once, on a trace.

    Registered as an `ExitPolicy` with name "online".

    # Parameters

    policy : `ExitPolicy`
        One that compares a score with thresholds. Thresholds of its own are not used.
    grid : `list` or `str` or `int`, optional (default = `10`)
        Candidates in the policy's own unit, `"never"` allowed; or as many quantiles of the scores on calibration data.
        CeeBERT has 0.5, 0.55, ... 0.95.
    mu : `float`, optional (default = `0.1`)
        The price of full depth, in confidence.
    exploration : `float`, optional (default = `1.0`)
    """

    speed_keys: ClassVar[tuple[str, ...] | None] = ("grid", "mu")

    def __init__(
        self, policy: ExitPolicy, grid: list | str | int = 10, mu: float = 0.1, exploration: float = 1.0
    ) -> None:
        super().__init__(policy, mu, exploration)
        self.grid = ThresholdGrid(grid)
        self.values = [self.policy.never if value is None else value for value in self.grid.values]

    def names(self) -> list[Any]:
        return [value if math.isfinite(value) else NEVER for value in self.values]

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        layers = np.array(exit_layers, dtype=np.float64)
        self.set_arms([[value] * (self.num_exits - 1) for value in self.values], np.tile(layers, (len(self.values), 1)))
        self.policy.values = [self.policy.never] * (self.num_exits - 1)  # not used; for `to_config`

    def check_can_be_fitted(self) -> None:
        """Nothing is missing: thresholds come from `grid`."""

    def calibrate(self, trace: Trace, parameters: Trace | None = None) -> CalibrationReport:
        self.bind(trace.exit_layers, trace.num_labels)
        self.policy.fit_parameters(trace if parameters is None else parameters)
        table = self.policy.score_table(trace)
        if not self.values:
            candidates = self.grid.candidates(table, table.scores[:, :-1].flatten())
            self.values = [table.orient(value) for value in candidates]
            self.bind(trace.exit_layers, trace.num_labels)
        return self.report(trace)

    def to_config(self) -> dict[str, Any]:
        self.check_calibrated()
        own = {"grid": self.names(), "mu": self.mu, "exploration": self.bandit.exploration}
        return {"type": "online", "policy": self.policy.to_config(), **own}
