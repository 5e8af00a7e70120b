"""What is taken from a batch, and which batches are refused, is the same for every engine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution import Compaction, DepthPools, Engine, Single
from beem_plugin.execution.chunks import windows
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.exits.policies import Beem
from tests.execution.worlds import WEIGHTS, World, make_batches, reference, same
from tests.ragged import ragged_batches, ragged_of

ENGINES = [Single(), Compaction(), DepthPools(tokens_per_chunk=30)]


def answers(engine: Engine, network: World, batches: list[dict[str, Tensor]]) -> ExitDecisions:
    total = sum(len(batch["input_ids"]) for batch in batches)
    policy = Beem(thresholds=0.15, weights=WEIGHTS)
    return gather_decisions(engine.run(network, policy, ragged_batches(batches)), 3, total)[1]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
def test_padding_may_be_wider_than_what_the_network_takes(engine: Engine) -> None:
    world, batches = World(), make_batches(6, 3)
    assert world.backbone.max_tokens == 40
    expected = reference(world, Beem(thresholds=0.15, weights=WEIGHTS), batches)
    for batch in batches:
        for name in ("input_ids", "attention_mask"):
            batch[name] = torch.nn.functional.pad(batch[name], (0, 50 - batch[name].shape[1]))
    same(answers(engine, world, batches), expected)


def test_token_types_of_some_batches_alone() -> None:
    with_types = {"input_ids": torch.tensor([[5, 6]]), "token_type_ids": torch.tensor([[0, 1]])}
    without = {"input_ids": torch.tensor([[7, 8, 9]])}
    for batches, expected in (((with_types, without), [0, 1, 0, 0, 0]), ((without, with_types), [0, 0, 0, 0, 1])):
        joined = RaggedBatch.join(list(ragged_batches(batches)))
        assert joined.tokens["token_type_ids"].tolist() == expected
        assert len(joined.tokens["input_ids"]) == 5


def test_lists_and_padded_batches_give_the_same_samples() -> None:
    ids = [[5, 6, 7], [8], [9, 10]]
    made = ragged_of(ids, pad_token_id=1, position=4)
    assert made.index.tolist() == [4, 5, 6]
    padded = made.padded()
    assert padded["input_ids"].tolist() == [[5, 6, 7], [8, 1, 1], [9, 10, 1]]
    assert padded["attention_mask"].tolist() == [[True] * 3, [True, False, False], [True, True, False]]
    (back,) = ragged_batches([padded], 1)
    assert torch.equal(back.lengths, made.lengths) and torch.equal(back.padded()["input_ids"], padded["input_ids"])
    chosen = made.select(torch.tensor([2, 0]))
    assert chosen.index.tolist() == [6, 4] and chosen.padded(0, 1)["input_ids"].tolist() == [[9, 10]]
    part = made.narrow(1, 3)
    assert part.tokens["input_ids"].tolist() == [8, 9, 10] and part.padded()["input_ids"].tolist() == [[8, 1], [9, 10]]


def test_batches_are_joined_and_divided_into_windows() -> None:
    batches = [ragged_of([[3] * length for length in lengths]) for lengths in ([2, 2], [9, 1, 1], [1], [])]
    found = list(windows(batches, 5))
    assert [window.lengths.tolist() for window in found] == [[2, 2], [9], [1, 1, 1]]
    assert all(len(window.padded()["input_ids"]) == len(window) for window in found)
    growing = [len(window) for window in windows([ragged_of([[3]]) for _ in range(10)], 4, 1, 2)]
    assert growing == [1, 2, 4, 3]
