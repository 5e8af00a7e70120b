"""Captured batches that are none, that fail, and that run while the host goes on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest
import torch

from beem_plugin.execution.captured_batches import CapturedBatches
from beem_plugin.exits.policies import MaxProbability
from beem_plugin.exits.policy import ExitPolicy
from tests.execution.captured_worlds import (
    CPU,
    NOBODY,
    OnTheSpotCompaction,
    StandIn,
    batches_of_many_kinds,
    capture_at_once,
    compare,
    recorded,
)
from tests.execution.test_captured import OnTheSpot
from tests.execution.test_fused_window import network
from tests.execution.worlds import FUSED_POLICIES, make_batches


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_at_once(monkeypatch)


def test_what_is_run_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    made, engine, policy = network("cls").cpu(), OnTheSpotCompaction(), MaxProbability(thresholds=0.8)
    monkeypatch.setattr(CapturedBatches, "most_tokens", 8 * 16)
    compare(engine, made, policy, [{**batch, "extra": batch["index"]} for batch in make_batches(8, 8, longest=9)])
    compare(engine, made, policy, make_batches(9, 9, longest=9))
    assert not recorded(engine)[2].lanes
    compare(engine, made, policy, make_batches(8, 8, longest=9))
    assert recorded(engine)[2].lanes
    monkeypatch.setattr(CapturedBatches, "worth_capturing", 3)
    engine = OnTheSpotCompaction()
    for turn in range(4):
        compare(engine, made, policy, make_batches(8, 8, longest=9))
        assert bool(recorded(engine)[2].lanes) == (turn >= 2)


def test_the_longest_inputs() -> None:
    made, policy = network("cls").cpu(), MaxProbability(thresholds=0.8)
    made.backbone.max_tokens = 21
    engine = OnTheSpotCompaction()
    compare(engine, made, policy, [{"input_ids": torch.randint(3, 60, (3, 21))}])
    assert [length for length, _ in recorded(engine)[2].lanes] == [21]
    with pytest.raises(Exception, match="max_length"):
        list(engine.run(made, policy, [{"input_ids": torch.randint(3, 60, (3, 22))}]))


class InAThread(OnTheSpot):
    """Queues what is replayed, and takes its time for the layers beside which somebody decides."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self.is_slow = False
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        with torch.inference_mode():
            while (work := self.queue.get()) is not None:
                self.is_slow = True
                work()
                self.is_slow = False
                self.queue.task_done()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.wait()
        super().capture(work)
        return lambda: self.queue.put(work)

    def aside(self, work: Callable[[], None]) -> None:
        super().aside(work)
        if self.is_slow:
            time.sleep(0.003)

    def wait(self) -> None:
        while self.queue.unfinished_tasks:
            time.sleep(0.001)


@pytest.mark.parametrize("check_every", [1, 2])
@pytest.mark.parametrize("policy", FUSED_POLICIES[:4], ids=lambda policy: type(policy).__name__)
def test_the_host_goes_on_while_layers_run(policy: ExitPolicy, check_every: int) -> None:
    made, engine = network("mean").cpu(), OnTheSpotCompaction(check_every=check_every)
    policy.bind(made.exit_layers, 3)
    recorder = InAThread()
    engine._batches = CapturedBatches(made, policy, StandIn(made, policy), CPU, recorder, check_every)
    compare(engine, made, policy, batches_of_many_kinds(5))
    assert not recorder.queue.unfinished_tasks, "an engine that has run has nothing under way"
    recorder.queue.put(None)
    recorder.thread.join()


class Refuses(OnTheSpot):
    """From the third capture on: in the midst of a batch."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.captured == 2:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        return super().capture(work)


def test_a_failed_capture_is_logged_once_and_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    made, engine, policy = network("cls").cpu(), OnTheSpotCompaction(), NOBODY
    policy.bind(made.exit_layers, 3)
    engine._batches = CapturedBatches(made, policy, StandIn(made, policy), CPU, Refuses())
    compare(engine, made, policy, make_batches(20, 5), fails=True)
    assert len(caplog.records) == 1 and "not permitted" in caplog.text and "and more" not in caplog.text
    assert recorded(engine)[2].failure is not None and not recorded(engine)[2].lanes


def test_logits_that_are_no_numbers_are_waited_for_and_given() -> None:
    made, engine = network("cls").cpu(), OnTheSpotCompaction()
    with torch.no_grad():
        made.exits[-1].classifier.bias.fill_(float("nan"))
    (found,) = engine.run(made, NOBODY, make_batches(5, 5))
    assert set(found.decisions.exits.tolist()) == {4} and bool(found.decisions.log_probabilities.isnan().all())


class SaysNothing(OnTheSpot):
    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        super().capture(work)
        return lambda: None


def test_a_graph_that_tells_nothing_is_an_error() -> None:
    made, engine, policy = network("cls").cpu(), OnTheSpotCompaction(), NOBODY
    policy.bind(made.exit_layers, 3)
    engine._batches = CapturedBatches(made, policy, StandIn(made, policy), CPU, SaysNothing())
    with pytest.raises(RuntimeError, match="told nothing"):
        list(engine.run(made, policy, make_batches(5, 5)))
