"""Depth pools of packed samples, whose kernels run in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from beem_plugin.execution import Compaction, DepthPools
from beem_plugin.execution.chunks import PackedLayout, divide
from beem_plugin.execution.depth_pools import PackedLayout as UsedLayout
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.exits.heads import HeadFamily
from beem_plugin.exits.policies import MaxProbability
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from tests.backbones.tiny_models import tiny
from tests.execution.worlds import make_batches, same
from tests.ragged import ragged_batches

pytest.importorskip("triton")


def encoder(family: str, head: str = "pooled", pooling: str = "cls") -> MultiExitEncoder:
    torch.manual_seed(0)
    made = MultiExitEncoder(3, tiny(family), [2, 4], head=HeadFamily.from_params({"type": head})).eval()
    with torch.no_grad():
        for exit_head in made.exits:
            exit_head.classifier.weight.mul_(40)  # type: ignore[union-attr, operator]
            if hasattr(exit_head, "pooler"):
                exit_head.pooler.pooling = pooling  # type: ignore[union-attr]
    return made


@pytest.mark.parametrize(
    "family, head, pooling",
    [("bert", "pooled", "cls"), ("mpnet", "pooled", "mean"), ("distilbert", "attention", "cls")],
)
def test_packed_windows_give_the_results_of_padded_batches(
    monkeypatch: pytest.MonkeyPatch, family: str, head: str, pooling: str
) -> None:
    network, policy = encoder(family, head, pooling), MaxProbability(thresholds=0.7)
    used: list[Any] = []

    def first(layout: PackedLayout, samples: Any, original: Any = PackedLayout.first) -> Any:
        used.append(layout)
        return original(layout, samples)

    monkeypatch.setattr(UsedLayout, "first", first)
    batches = make_batches(14, 5, longest=9)
    engine = DepthPools(tokens_per_chunk=30, min_leaving=0.0, windows_in_flight=2, window_tokens=60)
    engine.use_kernels = True
    _, found = gather_decisions(engine.run(network, policy, ragged_batches(batches)), 3, 14)
    _, expected = gather_decisions(Compaction().run(network, policy, ragged_batches(batches)), 3, 14)
    same(found, expected)
    assert used, "samples are packed"
    assert set(expected.exits.tolist()) == {1, 2}


def test_chunks_have_about_equally_many_tokens() -> None:
    lengths = np.sort(np.random.default_rng(0).integers(1, 60, 500))
    parts = divide(lengths, 1000)
    assert [first for first, _ in parts] == [0, *(last for _, last in parts[:-1])] and parts[-1][1] == 500
    tokens = [int(lengths[first:last].sum()) for first, last in parts]
    assert max(tokens) <= 1.2 * 1000 and min(tokens) >= 0.8 * 1000
    assert divide(np.array([5]), 1) == [(0, 1)] and divide(np.array([1, 9]), 2) == [(0, 1), (1, 2)]
