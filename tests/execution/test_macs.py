"""Counts against the formula."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from beem_plugin.execution.metering.macs import count_macs
from beem_plugin.exits.heads.head import NO_MEMORY, ExitHead, HeadFamily, HeadSizes
from beem_plugin.exits.outputs import HeadOutput
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from tests.backbones.tiny_models import tiny
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


class BlockHead(ExitHead):
    """A transformer block of its own, the mean of all tokens, a linear classifier."""

    def __init__(self, hidden: int, num_labels: int) -> None:
        super().__init__()
        self.block = torch.nn.TransformerEncoderLayer(hidden, nhead=2, dim_feedforward=24, batch_first=True)
        self.classifier = torch.nn.Linear(hidden, num_labels)
        self.pooled_size = hidden

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, memory: Mapping[str, Tensor] = NO_MEMORY
    ) -> HeadOutput:
        mask = (
            torch.ones(hidden_states.shape[:2], dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        )
        states = self.block(hidden_states, src_key_padding_mask=~mask).masked_fill(~mask.unsqueeze(-1), 0.0)
        pooled = states.sum(1) / mask.sum(1, keepdim=True)
        return HeadOutput(self.classifier(pooled), pooled)


class BlockHeads(HeadFamily):
    def build(self, sizes: HeadSizes) -> list[ExitHead]:
        return [BlockHead(sizes.hidden_size, sizes.num_labels) for _ in range(sizes.num_exits)]


def test_a_transformer_block_in_a_head_is_counted() -> None:
    network = MultiExitEncoder(3, tiny("bert"), head=BlockHeads()).eval()
    macs = count_macs(network)
    head = torch.tensor(block(32, 24)).double() + torch.tensor([32.0 * 3, 0, 0])
    torch.testing.assert_close(macs.heads, head.expand(4, 3))
    exits, lengths = torch.tensor([2, 4]), torch.tensor([6, 9])
    layers = torch.tensor(block(32, 48)).double()
    powers = torch.tensor([[1, 6, 36], [1, 9, 81]]).double()
    spent = float((powers[0] * 2 * (layers + head)).sum() + (powers[1] * 4 * (layers + head)).sum())
    full = float((powers.sum(0) * (4 * layers + head)).sum())
    assert macs.speedup(exits, lengths) == pytest.approx(full / spent)


@pytest.mark.parametrize("family", sorted(HeadFamily.list_available()))
def test_a_head_without_a_mask_reads_all_tokens(family: str) -> None:
    network = MultiExitEncoder(3, tiny("bert"), head=HeadFamily.from_params({"type": family})).eval()
    hidden = torch.randn(2, 5, 32)
    with torch.no_grad():
        bare, masked = (network.exits[0](hidden, mask) for mask in (None, torch.ones(2, 5, dtype=torch.bool)))
    torch.testing.assert_close(bare.logits, masked.logits)


def test_heads_are_paid_by_those_who_pass_them() -> None:
    macs = count_macs(World("bert"))
    exits, lengths = torch.tensor([1, 4]), torch.tensor([5, 5])
    layer, head = 5 * (4 * 32**2 + 2 * 32 * 48) + 25 * 64, 32 * 32 + 32 * 3
    assert macs.spent(exits, lengths).tolist() == [layer + head, 4 * (layer + head)]
    assert macs.full(lengths).tolist() == [4 * layer + head] * 2
    assert macs.speedup(exits, lengths) == pytest.approx(2 * (4 * layer + head) / (5 * (layer + head)))
    assert macs.speedup(exits[:0], lengths[:0]) == 1.0
