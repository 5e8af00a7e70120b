"""How windows of depth pools take turns, and when exited samples are removed from batches."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.compaction import RunningBatch
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.depth_pools import take_turns
from tests.execution.worlds import Wanted, World, make_batches, reference, same
from tests.ragged import ragged_batches, ragged_of


def decisions(samples: int) -> ExitDecisions:
    ones = torch.ones(samples, dtype=torch.int64)
    return ExitDecisions(ones, ones, torch.zeros(samples, 2).double(), None)


def run(log: list[str], in_flight: int, ready: list[bool]) -> list[int]:
    """Three windows of one sample and three steps each; `log` gets what happens, in its order."""
    samples = [ragged_of([[5]], position=number) for number in range(3)]

    def read() -> Iterator[RaggedBatch]:
        for number, window in enumerate(samples):
            log.append(f"read {number}")
            yield window

    def start(window: RaggedBatch) -> Generator[None, None, ExitDecisions]:
        for step in range(3):
            log.append(f"step {step} of {int(window.index[0])}")
            yield
        return decisions(1)

    def is_ready() -> bool:
        return ready.pop(0) if ready else True

    return [int(one.index[0]) for one in take_turns(read(), start, in_flight, is_ready, lambda *_: None)]


def test_windows_in_flight_advance_in_turns() -> None:
    log: list[str] = []
    assert run(log, 2, []) == [0, 1, 2]
    assert log[:6] == ["read 0", "step 0 of 0", "read 1", "step 0 of 1", "step 1 of 0", "step 1 of 1"]
    log.clear()
    assert run(log, 1, []) == [0, 1, 2]
    assert log[:5] == ["read 0", "step 0 of 0", "step 1 of 0", "step 2 of 0", "read 1"]


def test_a_window_that_is_not_read_yet_is_not_waited_for() -> None:
    log: list[str] = []
    assert run(log, 2, [False, False]) == [0, 1, 2]
    assert log[:5] == ["read 0", "step 0 of 0", "step 1 of 0", "step 2 of 0", "read 1"]


def test_results_come_in_input_order() -> None:
    by_length = ragged_of([[5, 6, 7], [5], [5, 6]], position=4).select(torch.tensor([1, 2, 0]))

    def start(window: RaggedBatch) -> Generator[None, None, ExitDecisions]:
        yield
        return ExitDecisions(*(torch.tensor([1.0, 2.0, 3.0]) for _ in range(4)))

    (found,) = take_turns(iter([by_length]), start, 1, lambda: True, lambda *_: None)
    assert found.index.tolist() == [4, 5, 6] and found.decisions.exits.tolist() == [3, 1, 2]


@pytest.mark.parametrize("check_every", [1, 2, 3])
@pytest.mark.parametrize("min_leaving", [0.0, 0.3])
@torch.inference_mode()
def test_reading_exit_decisions_late_changes_no_result(check_every: int, min_leaving: float) -> None:
    """As on a GPU, where a sample is computed one exit longer."""
    world, policy, batches = World(), Wanted(), make_batches(12, 12, shuffled=False)
    expected: Any = reference(world, policy, batches)
    network = CompiledNetwork(world, policy)
    (samples,) = ragged_batches(batches)
    for reads_late in (True, False):
        same(RunningBatch(network, samples, min_leaving).run(check_every, reads_late), expected)
