"""Depths and multiply-accumulates of samples whose tokens exit one by one."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.calibration.token_depth import TokenDepth
from beem_plugin.execution.metering.macs import NetworkMacs, count_macs
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder


class AllTokens:
    """
    A `hash_exit` encoder as a network with an exit at every layer in which no token exits: used to count
    multiply-accumulates.
    """

    def __init__(self, encoder: MultiExitEncoder) -> None:
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


def depth_of_samples(encoder: MultiExitEncoder, depths: Sequence[Tensor], full_depth: int, saves: bool) -> TokenDepth:
    """
    Of a `hash_exit` encoder; `depths` are for each sample the last layer of each token, `(tokens,)` int64. Layers of
    `full_depth` above the backbone's cost as much as its last one. `saves`: whether tokens that have exited are not
    computed in later layers.
    """
    layers = encoder.backbone.num_layers
    counts = torch.zeros(len(depths), layers, dtype=torch.int64)
    spent = torch.zeros(len(depths), 2, dtype=torch.float64)
    macs = count_macs(AllTokens(encoder)) if depths else None
    for row, depth in enumerate(depths):
        assert macs is not None, "there are samples"
        counts[row] = torch.bincount(depth - 1, minlength=layers)
        spent[row] = torch.tensor(sample_macs(macs, depth, full_depth, saves), dtype=torch.float64)
    return TokenDepth(counts, spent, full_depth)


def sample_macs(macs: NetworkMacs, depth: Tensor, full_depth: int, saves: bool) -> tuple[float, float]:
    """Multiply-accumulates of a sample at full depth, and those that are computed; both include the classifier."""
    layers = len(macs.layers)
    all_tokens = torch.linalg.vander(torch.tensor([len(depth)], dtype=torch.float64), N=3)[0]  # (3,) 1, n and n^2
    head = float((macs.heads[-1] * all_tokens).sum())
    running = (depth[None] >= torch.arange(1, layers + 1)[:, None]).sum(1)  # (layers,)
    computed = torch.linalg.vander(running.double(), N=3) if saves else all_tokens.expand(layers, 3)
    full = float((macs.layers.sum(0) + (full_depth - layers) * macs.layers[-1]) @ all_tokens) + head
    return full, float((macs.layers * computed).sum()) + head
