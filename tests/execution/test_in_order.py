"""Results of an engine in any order, put into the order of the input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.engine import Engine, ExecutedBatch, run_in_order
from tests.ragged import ragged_of

NETWORK: Any = type("Network", (), {"num_labels": 2})()
SIZES = [3, 1, 4, 2]


def decided(index: torch.Tensor) -> ExecutedBatch:
    """Decisions from which the sample can be told."""
    output = torch.stack([index, index], 1).double()
    return ExecutedBatch(index, ExitDecisions(index + 1, index * 0, output, None))


class Shuffling(Engine):
    """Reads `ahead` samples and returns them in random order, in parts of two."""

    def __init__(self, ahead: int, lost: int | None = None) -> None:
        self.ahead, self.lost = ahead, lost

    def run(self, network: Any, policy: Any, batches: Iterable[RaggedBatch]) -> Iterator[ExecutedBatch]:
        held: list[int] = []
        for batch in batches:
            held += batch.index.tolist()
            if len(held) >= self.ahead:
                yield from self.emitted(held)
                held = []
        yield from self.emitted(held)

    def emitted(self, held: list[int]) -> Iterator[ExecutedBatch]:
        order = torch.randperm(len(held), generator=torch.Generator().manual_seed(len(held))).tolist()
        mixed = [held[place] for place in order if held[place] != self.lost]
        for start in range(0, len(mixed), 2):
            yield decided(torch.tensor(mixed[start : start + 2]))


def batches() -> Iterator[RaggedBatch]:
    position = 0
    for size in SIZES:
        yield ragged_of([[1]] * size, position=position)
        position += size


@pytest.mark.parametrize("ahead", [1, 5, 100])
def test_each_batch_gets_its_own_results(ahead: int) -> None:
    found = [decisions.exits.tolist() for decisions in run_in_order(Shuffling(ahead), NETWORK, None, batches())]  # type: ignore[arg-type]
    assert found == [[1, 2, 3], [4], [5, 6, 7, 8], [9, 10]]


def test_a_batch_comes_before_the_next_is_read() -> None:
    read: list[int] = []

    def noted() -> Iterator[RaggedBatch]:
        for batch in batches():
            read.append(len(batch))
            yield batch

    stream = run_in_order(Shuffling(1), NETWORK, None, noted())  # type: ignore[arg-type]
    assert next(stream).exits.tolist() == [1, 2, 3] and read == [3]


def test_a_lost_sample_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no result for 1 samples"):
        list(run_in_order(Shuffling(100, lost=9), NETWORK, None, batches()))  # type: ignore[arg-type]
