"""A network that is split between two machines, with the split learned while predicting."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.policies.adapting import AdaptingPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.trace_interface import Trace


@ExitPolicy.register("split")
class SplitPolicy(AdaptingPolicy):
    """
    SplitEE (Bajpai et al. 2023): the first layers run on an edge device, with one exit behind the last of them; a
    sample that does not exit there is sent to the cloud and leaves the last layer. The bandit (see `AdaptingPolicy`)
    chooses the split before each batch. Cost is the edge device's: the layers up to the split, and `offload` for a
    sample that is sent. The whole network on the edge, without sending, is a choice too. (SplitEE-S also learns from
    the exits before the split, which do not run here.)

    Here the network is computed in one place, and `layer_speedup` counts all layers. The edge device's mean cost is
    `mean_cost` in the report of `calibrate`.

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
        if not (offload >= 0 and math.isfinite(offload)):
            raise ConfigurationError(f"offload: found {offload}, allowed: a number from 0")
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

    def to_config(self) -> dict[str, Any]:
        own = {"mu": self.mu, "offload": self.offload, "exploration": self.bandit.exploration}
        return {"type": "split", "policy": self.policy.to_config(), **own}
