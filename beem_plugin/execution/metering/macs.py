"""
Multiply-accumulates, counted rather than timed.

Counted by torch's `FlopCounterMode`, which sees every matrix product, convolution and attention that runs and takes two
floating-point operations for one multiply-accumulate. Attention is counted in its unfused form, as two batched matrix
products, whatever kernel ran. Element-wise work (normalisation, activations, the policy's few numbers) is not counted,
as in every published count. A segment costs a + b T + c T^2 at T tokens, so three lengths determine it.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from beem_plugin.execution.stepped_network import SteppedNetwork, device_of
from beem_plugin.exits.branches import BranchedHead
from beem_plugin.exits.policy import ExitPolicy

LENGTHS = (8, 16, 24)


def _quantized_linear(inputs: Any, weight: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * math.prod(inputs) * out_shape[-1]


QUANTIZED = {torch.ops.quantized.linear_dynamic: _quantized_linear}
"""Formulas of operations that torch does not count."""


@dataclass
class NetworkMacs:
    """`(exits, 3)` float64 of 1, T, T^2: layers from exit to exit, embeddings with the first, and heads."""

    layers: Tensor
    heads: Tensor

    def spent(self, exits: Tensor, lengths: Tensor) -> Tensor:
        """`(samples,)` float64: cost of samples that exit at `exits`, all heads up to there included."""
        upto = (self.layers + self.heads).cumsum(0)[exits - 1]  # (samples, 3)
        return (upto * powers_of(lengths)).sum(1)

    def full(self, lengths: Tensor) -> Tensor:
        """`(samples,)` float64: full depth with the last head alone, as a network without exits."""
        return ((self.layers.sum(0) + self.heads[-1]) * powers_of(lengths)).sum(1)

    def speedup(self, exits: Tensor, lengths: Tensor) -> float:
        """`mac_speedup`: multiply-accumulates of full depth over those spent, heads included; 1.0 without samples."""
        return float(self.full(lengths).sum() / self.spent(exits, lengths).sum()) if len(exits) else 1.0


def powers_of(lengths: Tensor) -> Tensor:
    """`(samples, 3)` float64: 1, T and T^2."""
    return torch.stack([torch.ones_like(lengths), lengths, lengths**2], 1).double()


def count_macs(network: SteppedNetwork) -> NetworkMacs:
    """Runs `network` on samples of three lengths and counts."""
    layers, heads = [], []
    _count_at(network, LENGTHS[0])  # work of a first call is not counted
    for length in LENGTHS:
        counts = _count_at(network, length)
        layers.append([layer for layer, _ in counts])
        heads.append([head for _, head in counts])
    powers = powers_of(torch.tensor(LENGTHS))

    def fit(values: list[list[float]]) -> Tensor:
        coefficients = torch.linalg.solve(powers, torch.tensor(values, dtype=torch.float64)).T
        # Counts are whole numbers from 0; anything else is rounding of the solver.
        return coefficients.mul(1e4).round().div(1e4).clamp(min=0)

    return NetworkMacs(fit(layers), fit(heads))


@torch.no_grad()
def exit_costs(network: Any, policy: ExitPolicy | None = None, length: int = 32) -> list[float]:
    """Cost of exiting at each exit, in layers, with the branches up to there that `policy`, bound, needs."""
    if not any(isinstance(head, BranchedHead) for head in getattr(network, "exits", ())):
        return list(network.exit_layers)
    length = min(length, getattr(network.backbone, "max_tokens", None) or length)
    layer = sum(layers for layers, _ in _count_at(network, length)) / network.exit_layers[-1]
    weight = next(network.parameters())
    hidden = weight.new_zeros(1, length, network.backbone.hidden_size)
    costs, branches = [], 0.0
    for number, (head, depth) in enumerate(zip(network.exits, network.exit_layers, strict=True), 1):
        needed = policy is None or number == network.num_exits or policy.needs(number)
        if isinstance(head, BranchedHead) and needed:
            with counting() as counter:
                head.branch(hidden)
            branches += counter.get_total_flops() / 2 / layer
        costs.append(round(depth + branches, 4))
    return costs


@torch.no_grad()
def _count_at(network: SteppedNetwork, length: int) -> list[tuple[float, float]]:
    batch = {"input_ids": torch.full((1, length), 3, device=device_of(network))}
    counts = []
    for exit_number in range(1, network.num_exits + 1):
        with counting() as layer:
            if exit_number == 1:
                state = network.embed(batch)
            state = network.advance(exit_number, state)
        with counting() as head:
            network.exit_signals(exit_number, state)
        counts.append((layer.get_total_flops() / 2, head.get_total_flops() / 2))
    return counts


@contextmanager
def counting() -> Iterator[Any]:
    """Counts floating-point operations, two for each multiply-accumulate."""
    from torch.utils.flop_counter import FlopCounterMode  # here, because it imports Triton

    # Fused operators have no formula on every device: attention and transformer layers as matrix products.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=QUANTIZED) as counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
