"""The lanes of the low-latency engine, with work that is queued and done on the spot in place of CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from beem_plugin.execution.captured import CapturedLanes, fingerprint
from beem_plugin.execution.samples import unpad
from beem_plugin.execution.single import as_decisions
from beem_plugin.exits.policies import Beem
from tests.execution.worlds import Wanted, World, make_batches, reference, same


class OnTheSpot:
    """Runs captured work again where a graph would be replayed, and counts."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype)

    def capture(self, work: Callable[[], None], side: bool) -> Callable[[], None]:
        self.captured += 1
        work()

        def replay() -> None:
            self.replayed += 1
            work()

        return replay

    def use(self, side: bool) -> None: ...

    def main_done(self, exit_number: int) -> None: ...

    def side_waits(self, exit_number: int) -> None: ...

    def side_done(self, exit_number: int) -> None: ...

    def main_waits_for_side(self) -> None: ...

    def host_waits(self, exit_number: int) -> None: ...


class Refuses(OnTheSpot):
    def capture(self, work: Callable[[], None], side: bool) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def make_lanes(world: World, policy: object, lookahead: bool, recorder: type[OnTheSpot] = OnTheSpot) -> CapturedLanes:
    policy.bind(world.exit_layers, world.num_labels)  # type: ignore[attr-defined]
    return CapturedLanes(world, policy, torch.device("cpu"), 4, 2, lookahead, recorder)  # type: ignore[arg-type]


@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("policy", [Wanted(), Beem(thresholds=0.1, weights=[0.1, 0.2, 0.3, 0.4])])
@torch.inference_mode()
def test_lanes_give_the_reference_answers(policy: object, lookahead: bool) -> None:
    world = World()
    lanes = make_lanes(world, policy, lookahead)
    batches = make_batches(12, 12, shuffled=False)
    samples = unpad(batches[0])
    answers = [lanes.run(samples.batch(number, number + 1)) for number in range(len(samples))]
    same(as_decisions(answers), reference(world, policy, batches))  # type: ignore[arg-type]
    assert {length for length, _ in lanes.lanes} <= {4, 8, 12, 16}
    assert len(lanes.lanes) == 2, "the lengths unused longest made room"


@torch.inference_mode()
def test_without_lookahead_nothing_is_computed_in_vain() -> None:
    world = World()
    lanes = make_lanes(world, Wanted(), lookahead=False)
    exits = 0
    for batch in make_batches(10, 1, longest=4):
        answer = lanes.run(unpad(batch).batch(0, 1))
        assert answer is not None
        exits += answer[0]
    (recorder,) = lanes.recorders
    assert recorder.replayed == 2 * exits  # type: ignore[attr-defined]
    assert recorder.captured == 2 * world.num_exits  # type: ignore[attr-defined]


@torch.inference_mode()
def test_a_failed_capture_is_logged_once_and_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    lanes = make_lanes(World(), Wanted(), True, Refuses)
    for batch in make_batches(3, 1):
        assert lanes.run(unpad(batch).batch(0, 1)) is None
    assert len(caplog.records) == 1 and "not permitted" in caplog.text and "and more" not in caplog.text


def test_graphs_are_not_used_for_other_numbers_or_weights() -> None:
    world = World()
    policy, other = (Beem(thresholds=value, weights=[0.1] * 4) for value in (0.1, 0.2))
    for each in (policy, other):
        each.bind(world.exit_layers, 3)
    before = fingerprint(world, policy)
    assert fingerprint(world, policy) == before and fingerprint(world, other) != before
    world.double()
    assert fingerprint(world, policy) != before
