"""What an engine needs of a network."""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.exits.signals import ExitSignals


class SteppedNetwork(Protocol):
    """A network with exits that is computed from exit to exit; `models.MultiExitEncoder` is one."""

    exit_layers: list[int]
    num_labels: int

    @property
    def backbone(self) -> Any: ...

    @property
    def num_exits(self) -> int: ...

    @property
    def available_signals(self) -> set[str]: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def embed(self, batch: dict[str, Tensor]) -> BackboneState: ...

    def advance(self, exit_number: int, state: BackboneState) -> BackboneState: ...

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals: ...


def device_of(network: SteppedNetwork) -> torch.device:
    return next(iter(network.parameters())).device


def pad_token_of(network: object) -> int:
    """The padding id in the configuration of the network's backbone, 0 if there is none."""
    config = getattr(getattr(network, "backbone", None), "config", None)
    return getattr(config, "pad_token_id", None) or 0
