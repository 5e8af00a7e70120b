"""The low-latency engine with captured graphs, which are run on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from beem_plugin.execution.compiled import capture
from beem_plugin.execution.compiled.capture import await_pinned, without_collection
from beem_plugin.execution.compiled.sample_graphs import Segment, plan_segments
from beem_plugin.exits.policies import Beem, FixedExit, MaxProbability
from beem_plugin.exits.policy import ExitPolicy
from tests.execution.captured_worlds import CountingRecorder, GraphsOnHost
from tests.execution.worlds import WEIGHTS, Wanted, World, check, make_batches
from tests.ragged import ragged_batches, ragged_of

POLICIES: list[ExitPolicy] = [
    Wanted(),
    Beem(thresholds=0.1, weights=[0.1, 0.2, 0.3, 0.4]),
    Beem(thresholds=0.1, weights=[0.1, 0.2, 0.3, 0.4], min_exit=2),
    MaxProbability(thresholds=["never", 0.7, "never"]),
    FixedExit(3),
]


def run(engine: GraphsOnHost, world: World, policy: ExitPolicy, batches: list[dict]) -> list[int]:
    return [int(one.decisions.exits[0]) for one in engine.run(world, policy, ragged_batches(batches))]


@pytest.mark.parametrize("check_every", [1, 2, 9])
@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_graphs_give_the_reference_results(policy: ExitPolicy, lookahead: bool, check_every: int) -> None:
    engine = GraphsOnHost(length_bucket=4, max_lengths=2, lookahead=lookahead, check_every=check_every)
    check(engine, World(), policy, make_batches(12, 12, shuffled=False))
    assert engine._runner is not None
    assert {length for length, _ in engine._runner.graphs} <= {4, 8, 12, 16}
    assert len(engine._runner.graphs) == 2, "the least recently used lengths are dropped"


# The kernel of every policy is compared with it in tests/execution/compiled.
@pytest.mark.parametrize("policy", [POLICIES[0], POLICIES[2], POLICIES[3]], ids=lambda policy: type(policy).__name__)
def test_graphs_with_a_generated_kernel(policy: ExitPolicy) -> None:
    pytest.importorskip("triton")
    engine = GraphsOnHost(length_bucket=8)
    engine.use_kernels = True
    check(engine, World(), policy, make_batches(3, 3))


def test_without_lookahead_no_layer_is_computed_in_vain() -> None:
    engine, world = GraphsOnHost(length_bucket=4, lookahead=False), World()
    exits = run(engine, world, Wanted(), make_batches(10, 1, longest=4))
    (recorder,) = engine.recorders
    assert recorder.replayed == sum(exits) and recorder.captured == world.num_exits


def test_heads_that_cannot_matter_are_not_computed() -> None:
    engine = GraphsOnHost(length_bucket=4)
    assert run(engine, World(), MaxProbability(thresholds=["never", "never", 0.0]), make_batches(1, 1)) == [3]
    used = next(recorder for recorder in engine.recorders if recorder.replayed)
    assert used.captured == used.replayed == 1, "no sample can exit before exit 3"
    assert used.decided == 2, "exits 3 and 4"


class Refuses(CountingRecorder):
    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def test_a_failed_capture_is_logged_once_and_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    check(GraphsOnHost(Refuses), World(), Wanted(), make_batches(3, 1))
    found = [text for text in caplog.messages if text.startswith("CUDA graphs are not used")]
    assert len(found) == 1 and "not permitted" in found[0] and "and more" not in found[0]


def test_a_network_that_says_nan_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(capture, "POLLS_PER_CLOCK", 2)
    world = World()
    torch.nn.init.constant_(world.exits[-1].classifier.bias, float("nan"))
    batch = ragged_of([[5, 6, 7]])
    policy = Beem(thresholds="never", weights=WEIGHTS)
    (found,) = GraphsOnHost(length_bucket=4).run(world, policy, [batch])
    assert found.decisions.exits.tolist() == [4] and bool(found.decisions.log_probabilities.isnan().all())


def test_waiting_ends_when_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "TIMEOUT_SECONDS", 0.0)
    waited = []
    assert await_pinned(lambda: True, lambda: waited.append(1)) and not waited
    assert not await_pinned(lambda: False, lambda: waited.append(1)) and waited == [1]


def test_nothing_is_collected_during_a_capture() -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(KeyError), without_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == enabled
    gc.enable()


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
                    assert found[-1].awaited[-1] == count
