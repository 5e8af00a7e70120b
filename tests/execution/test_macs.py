"""Counts against the formula."""

from __future__ import annotations

import pytest
import torch

from beem_plugin.execution.metering.macs import count_macs
from tests.execution.worlds import World


def block(hidden: int, inner: int) -> list[float]:
    """Coefficients of 1, T, T^2 of a BERT block: six linear maps, two products of attention."""
    return [0, 4 * hidden**2 + 2 * hidden * inner, 2 * hidden]


def test_counts_of_a_bert_shape() -> None:
    macs = count_macs(World("bert"))
    expected = torch.tensor(block(32, 48)).double()
    torch.testing.assert_close(macs.layers, expected.expand(4, 3))
    torch.testing.assert_close(macs.heads, torch.tensor([[32.0 * 32 + 32 * 3, 0, 0]]).double().expand(4, 3))


@pytest.mark.parametrize("family", ["mpnet", "modernbert", "deberta-v2", "albert"])
def test_every_block_counts_the_same(family: str) -> None:
    layers = count_macs(World(family)).layers
    assert bool((layers[1:] == layers[1]).all()) and float(layers[1, 1]) > 0


def test_heads_are_paid_by_those_who_pass_them() -> None:
    macs = count_macs(World("bert"))
    exits, lengths = torch.tensor([1, 4]), torch.tensor([5, 5])
    layer, head = 5 * (4 * 32**2 + 2 * 32 * 48) + 25 * 64, 32 * 32 + 32 * 3
    assert macs.spent(exits, lengths).tolist() == [layer + head, 4 * (layer + head)]
    assert macs.full(lengths).tolist() == [4 * layer + head] * 2
    assert macs.speedup(exits, lengths) == pytest.approx(2 * (4 * layer + head) / (5 * (layer + head)))
    assert macs.speedup(exits[:0], lengths[:0]) == 1.0
