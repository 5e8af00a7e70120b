"""Captured batches without a GPU: work that is done on the spot in place of graphs, torch in place of kernels."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.execution import batch_sheet
from beem_plugin.execution.captured_batches import CapturedBatches
from beem_plugin.execution.compaction import Compaction
from beem_plugin.execution.fused_rule import fused_rule
from beem_plugin.exits.policies import MaxProbability
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from tests.execution.test_captured import OnTheSpot
from tests.execution.worlds import make_batches

CPU = torch.device("cpu")
NOBODY = MaxProbability(thresholds=1.0)
EVERYBODY = MaxProbability(thresholds=0.0)


class StandIn:
    """Says what the network and the policy say, as the kernels do, with torch."""

    def __init__(self, network: Any, policy: ExitPolicy) -> None:
        rule = fused_rule(policy)
        self.network, self.policy = network, policy
        self.has_score = rule is not None and rule.has_score
        self.memories: dict[int, dict[str, Tensor]] = {}
        self.decided: list[tuple[int, int]] = []

    def logits(self, exit_number: int, state: BackboneState) -> Tensor:
        return self.network.exit_signals(exit_number, state).logits

    def decide(
        self, exit_number: int, logits: Tensor, rows: Tensor, state: dict[str, Tensor], flags: Tensor, is_last: bool
    ) -> None:
        self.decided.append((exit_number, len(rows)))
        kept = self.memories.setdefault(id(state), {})  # of one lane
        if bool((state["label"][rows] < 0).all()):
            memory = self.policy.start(len(rows), self.policy.num_exits)
        else:
            memory = ExitState(**{name: value[rows] for name, value in kept.items()})
        signals = ExitSignals(logits)
        leaves, memory = self.policy.step(exit_number, signals, memory)
        stays = state["left"][rows] == 0
        new = stays & (leaves | is_last)
        state["label"][rows] = 0.0
        score = self.policy.score(memory)
        if score is not None:
            state["score"][rows[stays]] = score[stays].double()
        state["exits"][rows[new]] = exit_number
        state["output"][rows[new]] = self.policy.output(exit_number, signals, memory)[new].double()
        state["left"][rows[new]] = 1
        for name, value in memory.tensors.items():
            if name not in kept:
                kept[name] = value.new_zeros((len(state["left"]), *value.shape[1:]))
            kept[name][rows] = value


class OnTheSpotCompaction(Compaction):
    """Captures on a CPU, with stand-ins for the kernels."""

    def _can_capture(self, device: torch.device) -> bool:
        return self.capture

    def _captured(self, network: Any, policy: ExitPolicy, device: torch.device) -> CapturedBatches | None:
        if self._batches is None or not self._batches.serves(network, policy):
            decider = StandIn(network, policy)
            self._batches = CapturedBatches(
                network, policy, decider, device, OnTheSpot(), self.check_every, self.min_leaving
            )
        return self._batches


class WithKernels(Compaction):
    """Captures on a CPU."""

    def _can_capture(self, device: torch.device) -> bool:
        return self.capture

    def _recorder(self, device: torch.device) -> OnTheSpot:  # type: ignore[override]
        return OnTheSpot()


def compare(engine: Compaction, made: Any, policy: ExitPolicy, batches: list[dict], fails: bool = False) -> Any:
    """Runs `engine`, which captures, and holds it against one that does not."""
    found = list(engine.run(made, policy, batches))
    assert engine._batches is None or (engine._batches.failure is not None) == fails
    expected = list(Compaction(capture=False).run(made, policy, batches))
    assert [one.index.tolist() for one in found] == [one.index.tolist() for one in expected], "in the same order"
    for one, other in zip(found, expected):
        equal(one.decisions, other.decisions)
    return torch.cat([one.decisions.exits for one in found])


def equal(found: ExitDecisions, expected: ExitDecisions, tolerance: float = 1e-5) -> None:
    assert found.exits.tolist() == expected.exits.tolist()
    assert found.predictions.tolist() == expected.predictions.tolist()
    assert found.exits.dtype == expected.exits.dtype and found.predictions.dtype == expected.predictions.dtype
    torch.testing.assert_close(found.log_probabilities, expected.log_probabilities, atol=tolerance, rtol=tolerance)
    assert (found.scores is None) == (expected.scores is None)
    if found.scores is not None and expected.scores is not None:
        torch.testing.assert_close(found.scores, expected.scores, atol=tolerance, rtol=tolerance)


def batches_of_many_kinds(seed: int) -> list[dict]:
    rng = random.Random(seed)
    batches: list[dict] = []
    for turn in range(6):
        more = make_batches(rng.choice([1, 3, 9, 20]), rng.choice([1, 5, 8, 20]), seed + turn, rng.choice([3, 20, 35]))
        start = sum(len(batch["index"]) for batch in batches)
        batches += [{**batch, "index": batch["index"] + start} for batch in more]
    return batches


def recorded(engine: Compaction) -> tuple[StandIn, OnTheSpot, CapturedBatches]:
    batches = engine._batches
    assert batches is not None
    return batches.decider, batches.recorder, batches  # type: ignore[return-value]


def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run uncaptured because it has not come before."""
    monkeypatch.setattr(CapturedBatches, "worth_capturing", 1)
    # Where nothing is queued, all is there, or never will be.
    monkeypatch.setattr(batch_sheet, "PATIENCE_SECONDS", 0.05)
