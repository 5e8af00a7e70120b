"""One sample as numbers takes the decisions that it takes as tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from beem_plugin.exits.plain import PlainSignals, is_of_the_rule
from beem_plugin.exits.policies import Beem, Entropy, Final, FixedExit, Margin, MaxProbability, Patience
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState

WEIGHTS = [0.1, 0.25, 0.3, 0.45]
PLAIN: list[ExitPolicy] = [
    Beem(thresholds=0.2, weights=WEIGHTS),
    Beem(thresholds=[0.05, "never", 0.3], weights=WEIGHTS, on_disagreement="zero", min_exit=2),
    MaxProbability(thresholds=0.8),
    Margin(thresholds=0.6),
    Entropy(thresholds=0.4),
    Entropy(thresholds=0.4, normalized=True, min_exit=3),
    Patience(1),
    Patience(2),
    FixedExit(2),
    Final(),
]


@pytest.mark.parametrize("scale", [0.1, 3.0, 400.0])
@pytest.mark.parametrize("policy", PLAIN, ids=lambda policy: type(policy).__name__)
def test_numbers_and_tensors_agree(policy: Any, scale: float) -> None:
    assert policy.plain_numbers and is_of_the_rule(policy, "plain_numbers")
    policy.bind([1, 2, 3, 4], 3)
    generator = torch.Generator().manual_seed(int(scale))
    for _ in range(40):
        memory = policy.start(1, 4, "cpu")
        plain = ExitState(**{name: value.item() for name, value in memory.tensors.items()})
        for exit_number in (1, 2, 3, 4):
            signals = ExitSignals(torch.randn(1, 3, generator=generator) * scale)
            numbers = PlainSignals(signals.logits[0].double().tolist())
            leaves, memory = policy.step(exit_number, signals, memory)
            plain_leaves, plain = policy.step(exit_number, numbers, plain)
            assert plain_leaves is bool(leaves)
            score, plain_score = policy.score(memory), policy.score(plain)
            assert (score is None) == (plain_score is None)
            if score is not None:
                assert plain_score == pytest.approx(float(score), abs=1e-14)
            output = policy.output(exit_number, signals, memory)
            assert policy.output(exit_number, numbers, plain) == pytest.approx(output[0].tolist(), abs=1e-12)


@pytest.mark.parametrize("logits", [[0.0, 0.0], [1e4, -1e4, 3.0], [5.0, 5.0, 5.0 - 1e-7]])
def test_quantities(logits: list[float]) -> None:
    numbers, signals = PlainSignals(logits), ExitSignals(torch.tensor([logits], dtype=torch.float64))
    assert numbers.prediction == int(signals.prediction)
    for name in ("confidence", "entropy", "margin"):
        assert getattr(numbers, name) == pytest.approx(float(getattr(signals, name)), abs=1e-14)
    assert all(math.isfinite(value) for value in numbers.log_probabilities)


class Own(Beem):
    """Somebody's own rule, written for tensors."""

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=signals.confidence.clone(), prediction=signals.prediction)


class Remembers(Entropy):
    """A rule made from one without memory."""

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return ExitState(score=self.zeros(batch_size, device))

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=signals.entropy + state["score"])


class Stubborn(MaxProbability):
    """Leaves in a way that thresholds do not say."""

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[torch.Tensor, ExitState]:
        return signals.confidence > 0, self.update(exit_number, signals, state)


def test_what_a_subclass_changes_is_not_believed() -> None:
    assert not is_of_the_rule(Own(thresholds=0.1, weights=[0.1]), "plain_numbers")
    remembers, stubborn = Remembers(thresholds="never"), Stubborn(thresholds="never")
    for policy in (remembers, stubborn):
        policy.bind([1, 2, 3], 2)
    assert not remembers.can_leave(1) and remembers.needs(1)
    assert stubborn.can_leave(1) and stubborn.needs(1)


def test_exits_that_cannot_matter() -> None:
    def asks(policy: ExitPolicy) -> list[tuple[bool, bool]]:
        policy.bind([1, 2, 3, 4], 2)
        return [(policy.can_leave(number), policy.needs(number)) for number in (1, 2, 3)]

    yes, told, no = (True, True), (False, True), (False, False)
    assert asks(MaxProbability(thresholds=["never", 0.5, "never"])) == [no, yes, no]
    assert asks(MaxProbability(thresholds="never", fallback="most_confident", min_exit=2)) == [no, told, told]
    assert asks(Entropy(thresholds=0.5, min_exit=3)) == [no, no, yes]
    assert asks(Beem(thresholds=0.5, weights=WEIGHTS, min_exit=2)) == [told, yes, yes]
    assert asks(Patience(2)) == [told, told, yes]
    assert asks(FixedExit(2)) == [no, yes, yes]
    assert asks(Final()) == [no, no, no]
