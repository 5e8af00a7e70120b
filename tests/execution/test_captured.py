"""The lanes of the low-latency engine, with work that is queued and done on the spot in place of CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.captured import CapturedLanes, fingerprint
from beem_plugin.execution.compiled.capture import without_collection
from beem_plugin.execution.segments import Segment, plan_segments
from beem_plugin.execution.single import as_decisions
from beem_plugin.exits.policies import Beem, FixedExit, MaxProbability
from tests.execution.worlds import Wanted, World, make_batches, reference, same


class OnTheSpot:
    """Runs captured work again where a graph would be replayed, and counts."""

    def __init__(self) -> None:
        self.captured = self.replayed = self.decided = 0

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        work()
        self.decided = 0

        def replay() -> None:
            self.replayed += 1
            work()

        return replay

    def aside(self, work: Callable[[], None]) -> None:
        self.decided += 1
        work()

    def join(self) -> None: ...

    def enter(self) -> None: ...

    def wait(self) -> None: ...


def test_nothing_is_collected_during_a_capture() -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(KeyError), without_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == enabled
    gc.enable()


@torch.inference_mode()
def test_a_failed_try_of_the_kernels_leaves_no_trace() -> None:
    world = World()
    lanes = make_lanes(world, MaxProbability(thresholds=0.7), lookahead=True)
    batch = RaggedBatch.from_padded(make_batches(1, 1, 4, 4)[0]).padded(0, 1)
    expected = lanes.run(batch)
    (lane, *_) = lanes.lanes[next(iter(lanes.lanes))]

    class Fails:
        def stage(self, *given: Tensor) -> None:
            raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError):
        lane._stages(Fails(), torch.device("cpu"))  # type: ignore[arg-type]
    assert bool((lane.staging == 1).all()) and bool((lane.inputs == 1).all()) and bool((lane.mask == 1).all())
    again = lane.run(batch)
    assert expected is not None and again[0] == expected[0] and torch.equal(again[1], expected[1])


class Refuses(OnTheSpot):
    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def make_lanes(
    world: World,
    policy: object,
    lookahead: bool,
    recorder: type[OnTheSpot] = OnTheSpot,
    check_every: int = 1,
    heads: str = "plain",
) -> CapturedLanes:
    policy.bind(world.exit_layers, world.num_labels)  # type: ignore[attr-defined]
    device = torch.device("cpu")
    return CapturedLanes(world, policy, device, 4, 2, lookahead, check_every, heads, recorder)  # type: ignore[arg-type]


@pytest.mark.parametrize("check_every", [1, 2, 9])
@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize(
    "policy",
    [
        Wanted(),
        Beem(thresholds=0.1, weights=[0.1, 0.2, 0.3, 0.4]),
        Beem(thresholds=0.1, weights=[0.1, 0.2, 0.3, 0.4], min_exit=2),
        MaxProbability(thresholds=["never", 0.7, "never"]),
        FixedExit(3),
    ],
)
@torch.inference_mode()
def test_lanes_give_the_reference_answers(policy: object, lookahead: bool, check_every: int) -> None:
    world = World()
    lanes = make_lanes(world, policy, lookahead, check_every=check_every)
    batches = make_batches(12, 12, shuffled=False)
    samples = RaggedBatch.from_padded(batches[0])
    answers = [lanes.run(samples.padded(number, number + 1)) for number in range(len(samples))]
    same(as_decisions(answers), reference(world, policy, batches))  # type: ignore[arg-type]
    assert {length for length, _ in lanes.lanes} <= {4, 8, 12, 16}
    assert len(lanes.lanes) == 2, "the lengths unused longest made room"


@torch.inference_mode()
def test_without_lookahead_nothing_is_computed_in_vain() -> None:
    world = World()
    lanes = make_lanes(world, Wanted(), lookahead=False)
    exits = 0
    for batch in make_batches(10, 1, longest=4):
        answer = lanes.run(RaggedBatch.from_padded(batch).padded(0, 1))
        assert answer is not None
        exits += answer[0]
    (recorder,) = lanes.recorders
    assert recorder.replayed == exits and recorder.captured == world.num_exits  # type: ignore[attr-defined]


@torch.inference_mode()
def test_heads_that_cannot_matter_are_not_computed() -> None:
    world = World()
    lanes = make_lanes(world, MaxProbability(thresholds=["never", "never", 0.0]), lookahead=True)
    answer = lanes.run(RaggedBatch.from_padded(make_batches(1, 1)[0]).padded(0, 1))
    assert answer is not None and answer[0] == 3
    used = lanes.recorders[lanes.turn % 2]
    assert used.captured == used.replayed == 1, "nothing is cut before exit 3"  # type: ignore[attr-defined]
    assert used.decided == 2, "exits 3 and 4"  # type: ignore[attr-defined]


def test_segments() -> None:
    every = [True] * 4
    assert plan_segments(4, every, 1, False) == [
        Segment(range(number, number + 1), range(number, number + 1), (number,)) for number in (1, 2, 3, 4)
    ]
    assert plan_segments(4, every, 1, True) == [
        Segment(range(1, 3), range(1, 2), (1,)),
        Segment(range(3, 4), range(2, 3), (2,)),
        Segment(range(4, 5), range(3, 5), (3, 4)),
    ]
    assert plan_segments(4, every, 2, True) == [
        Segment(range(1, 4), range(1, 3), (1, 2)),
        Segment(range(4, 5), range(3, 5), (3, 4)),
    ]
    assert plan_segments(1, [False], 1, True) == [Segment(range(1, 2), range(1, 2), (1,))]
    assert plan_segments(4, [False] * 4, 1, True) == [Segment(range(1, 5), range(1, 5), (4,))]
    for count in (1, 2, 5):
        for check_every in (1, 2, 3, 9):
            for lookahead in (True, False):
                for bits in range(2**count):
                    found = plan_segments(count, [bool(bits >> n & 1) for n in range(count)], check_every, lookahead)
                    assert [e for part in found for e in part.layers] == list(range(1, count + 1))
                    assert [e for part in found for e in part.decisions] == list(range(1, count + 1))
                    assert found[-1].asked[-1] == count


@torch.inference_mode()
def test_a_failed_capture_is_logged_once_and_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    lanes = make_lanes(World(), Wanted(), True, Refuses)
    for batch in make_batches(3, 1):
        assert lanes.run(RaggedBatch.from_padded(batch).padded(0, 1)) is None
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


@torch.inference_mode()
def test_a_policy_that_is_changed_afterwards_changes_no_lane_of_an_equal_one() -> None:
    world, first = World(), Beem(thresholds=0.1, weights=[0.1, 0.2, 0.3, 0.4])
    lanes = make_lanes(world, first, True)
    batches = make_batches(12, 12, shuffled=False)
    samples = RaggedBatch.from_padded(batches[0])
    lanes.run(samples.padded(0, 1))
    equal = Beem(thresholds=0.1, weights=[0.1, 0.2, 0.3, 0.4])
    equal.bind(world.exit_layers, world.num_labels)
    assert lanes.serves(world, equal)
    first.values = [1e9] * 3
    # Graphs of a length are what they are; those of other lengths were not yet captured.
    others = [n for n in range(len(samples)) if (samples.lengths[n] - 1) // 4 != (samples.lengths[0] - 1) // 4]
    expected = reference(world, equal, batches)
    assert others and [lanes.run(samples.padded(n, n + 1))[0] for n in others] == expected.exits[others].tolist()  # type: ignore[index]
