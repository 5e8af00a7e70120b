"""How deep the tokens of samples go, where they leave one by one, and what that saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.execution.macs import NetworkMacs, count_macs
from beem_plugin.exits.signals import ExitSignals

if TYPE_CHECKING:
    from beem_plugin.models.hash_exit_encoder import HashExitEncoder


class AllTokens:
    """
    The same network with every token in every layer, layer by layer, for counting.

    # Parameters

    encoder : `HashExitEncoder`
    """

    def __init__(self, encoder: HashExitEncoder) -> None:
        self.encoder = encoder
        self.backbone = encoder.backbone
        self.num_labels = encoder.num_labels
        self.exit_layers = list(range(1, encoder.backbone.num_layers + 1))

    @property
    def num_exits(self) -> int:
        return len(self.exit_layers)

    @property
    def available_signals(self) -> set[str]:
        return set()

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return self.encoder.parameters()

    def embed(self, batch: dict[str, Tensor]) -> BackboneState:
        return self.backbone.embed(batch)

    def advance(self, exit_number: int, state: BackboneState) -> BackboneState:
        return self.backbone.layer(exit_number, state)

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals:
        if exit_number < self.num_exits:
            return ExitSignals(state.hidden_states[:, 0, : self.num_labels])
        return self.encoder.exit_signals(1, state)


def summarize_depth(encoder: HashExitEncoder, depths: Sequence[Tensor], full_depth: int, saves: bool) -> dict[str, Any]:
    """
    # Parameters

    encoder : `HashExitEncoder`
    depths : `Sequence[Tensor]`
        For each sample `(tokens,)` int64, the last layer of each of its tokens.
    full_depth : `int`
        The depth that speed-ups are relative to.
    saves : `bool`
        Whether tokens that have left are really computed no further.

    # Returns

    `dict[str, Any]`
        `layer_speedup`: layers of all tokens at full depth over those that they go through; `average_layer`: their
        mean; `layers_saved`; `token_exit_histogram`: tokens by their last layer; `mac_speedup`: multiply-accumulates of
        a network of full depth over those computed, each sample for itself, the classifier included.
    """
    layers = encoder.backbone.num_layers
    histogram = torch.zeros(layers, dtype=torch.int64)
    for depth in depths:
        histogram += torch.bincount(depth - 1, minlength=layers)
    tokens = int(histogram.sum())
    if tokens == 0:
        return {}
    average = float((histogram * torch.arange(1, layers + 1)).sum()) / tokens
    return {
        "layer_speedup": full_depth / average,
        "layers_saved": 1 - average / full_depth,
        "average_layer": average,
        "token_exit_histogram": histogram.tolist(),
        "mac_speedup": mac_speedup(count_macs(AllTokens(encoder)), depths, full_depth, saves),
    }


def mac_speedup(macs: NetworkMacs, depths: Sequence[Tensor], full_depth: int, saves: bool) -> float:
    """See `summarize_depth`. Layers beyond the backbone's own count as its last one."""

    def powers(tokens: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(tokens), tokens, tokens**2], -1).double()

    layers = len(macs.layers)
    full = spent = 0.0
    for depth in depths:
        whole = powers(torch.tensor(len(depth)))
        head = float((macs.heads[-1] * whole).sum())
        running = (depth[None] >= torch.arange(1, layers + 1)[:, None]).sum(1)  # (layers,)
        computed = powers(running) if saves else whole.expand(layers, 3)
        spent += float((macs.layers * computed).sum()) + head
        full += float((macs.layers.sum(0) + (full_depth - layers) * macs.layers[-1]) @ whole) + head
    return full / spent
