"""Thresholds, or the split of a network between two machines, that are learned while predicting, without labels."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from beem_plugin.common.errors import check_number
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.policies.adapting import AdaptingPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.threshold_strategy import NEVER, ThresholdGrid
from beem_plugin.exits.trace_interface import Trace


@ExitPolicy.register("online")
class OnlineThresholds(AdaptingPolicy):
    """
    Learns one threshold for all exits while predicting, as CeeBERT (Bajpai and Hanawal 2024). A bandit selects it from
    `grid` before each batch (see `AdaptingPolicy`); at batch size 1, before each sample. The release subtracts the
    confidence of the first exit from all rewards. The strategy `ucb` fits the same threshold once, on a trace.

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

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "grid": self.names()}


@ExitPolicy.register("split")
class SplitPolicy(AdaptingPolicy):
    """
    SplitEE (Bajpai et al. 2023): the first layers run on an edge device, with one exit behind the last of them; a
    sample that does not exit there is sent to the cloud and leaves the last layer. The bandit (see `AdaptingPolicy`)
    chooses the split before each batch; the whole network on the edge is a choice too. Cost is the edge device's: the
    layers up to the split, and `offload` for a sample that is sent. `layer_speedup` counts all layers; the edge's mean
    cost is `mean_cost` in the report of `calibrate`. (SplitEE-S, which also learns from earlier exits, is left out.)

    Registered as an `ExitPolicy` with name "split".

    # Parameters

    policy : `ExitPolicy`
        One that compares a score with thresholds, with its thresholds or a strategy that fits them. Of its thresholds
        that of the split is used.
    mu : `float`, optional (default = `1.2`)
        The price of full depth, in confidence; the release has 0.1 a layer of 12.
    offload : `float`, optional (default = `1.0`)
        The price of sending a sample, in layers of the edge device; the release has 1 to 6.
    exploration : `float`, optional (default = `1.0`)
    """

    speed_keys: ClassVar[tuple[str, ...] | None] = ("mu", "offload")

    def __init__(self, policy: ExitPolicy, mu: float = 1.2, offload: float = 1.0, exploration: float = 1.0) -> None:
        super().__init__(policy, mu, exploration)
        check_number("offload", offload)
        self.offload = offload

    def names(self) -> list[Any]:
        """The last layer on the edge."""
        return [self.exit_layers[number - 1] for number in self.splits()]

    def splits(self) -> list[int]:
        """The exits at which the network can be split; the last is no split."""
        return list(range(self.policy.min_exit, self.num_exits + 1))

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        if self.policy.values is None:
            return
        early, arms, prices = self.num_exits - 1, [], []
        for split in self.splits():
            arm = [self.policy.never] * early
            arm[split - 1 : split] = self.policy.values[split - 1 : split]
            sent = self.offload if split < self.num_exits else 0.0
            arms.append(arm)
            edge = [float(min(layer, exit_layers[split - 1])) for layer in exit_layers]
            prices.append([*edge[:-1], edge[-1] + sent])
        self.set_arms(arms, np.array(prices, dtype=np.float64))

    def calibrate(self, trace: Trace, parameters: Trace | None = None) -> CalibrationReport:
        inner = self.policy.calibrate(trace, parameters)
        self.bind(trace.exit_layers, trace.num_labels)
        report = self.report(trace)
        return replace(report, thresholds=inner.thresholds, details={**inner.details, **report.details})
