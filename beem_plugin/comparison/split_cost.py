"""A network that is split between two machines: the first layers here, the others behind a connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from beem_plugin.common.errors import ConfigurationError


@dataclass(frozen=True)
class SplitCost:
    """
    SplitEE (Bajpai et al. 2023): layers up to `layer` run on the edge device, with their exits; a sample that exits at
    none of them is sent to the cloud, where the other layers and exits run.

    # Parameters

    layer : `int`
        The last layer on the edge.
    offload : `float`, optional (default = `1.0`)
        The price of sending a sample, in layers of the edge device.
    """

    layer: int
    offload: float = 1.0

    def __post_init__(self) -> None:
        if self.layer < 1:
            raise ConfigurationError(f"--edge-layers: found {self.layer}, allowed: 1 or more")
        if not self.offload >= 0:
            raise ConfigurationError(f"--offload-cost: found {self.offload}, allowed: a number from 0")

    def figures(self, exit_histogram: Sequence[int], exit_layers: Sequence[int]) -> dict[str, float]:
        """`offloaded`, the share of samples that are sent; `edge_cost`, layers on the edge and sending, per sample."""
        if self.layer >= exit_layers[-1]:
            raise ConfigurationError(
                f"--edge-layers: found {self.layer}, allowed: 1 to {exit_layers[-1] - 1} of {exit_layers[-1]} layers"
            )
        samples = sum(exit_histogram)
        both = list(zip(exit_histogram, exit_layers, strict=True))
        sent = sum(count for count, layer in both if layer > self.layer)
        run = sum(count * min(layer, self.layer) for count, layer in both)
        return {"offloaded": sent / samples, "edge_cost": (run + self.offload * sent) / samples}
