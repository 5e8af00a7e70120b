"""What policies declare about themselves, and subclasses that make a declaration void."""

from __future__ import annotations

import torch

from beem_plugin.exits.policies import Beem, Entropy, Final, FixedExit, MaxProbability, Patience
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState

WEIGHTS = [0.1, 0.25, 0.3, 0.45]


class Remembers(Entropy):
    """Made from a policy without memory."""

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return ExitState(score=self.zeros(batch_size, device))

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=signals.entropy + state["score"])


class Stubborn(MaxProbability):
    """Exits whatever the thresholds are."""

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[torch.Tensor, ExitState]:
        return signals.confidence > 0, self.update(exit_number, signals, state)


def test_a_declaration_does_not_hold_for_a_subclass_with_another_decision() -> None:
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


def test_the_former_name_of_an_attribute_still_works() -> None:
    class Doubt(ThresholdPolicy):
        higher_is_surer = False

        def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
            return ExitState(score=1 - signals.confidence)

    policy = Doubt(thresholds=0.2)
    policy.bind([1, 2], 2)
    assert not policy.higher_is_more_confident and not policy.higher_is_surer
    assert Beem(weights=WEIGHTS, thresholds=1.0).higher_is_surer
    leaves, _ = policy.step(1, ExitSignals(torch.tensor([[4.0, 0.0], [0.0, 0.0]])), policy.start(2, 2))
    assert leaves.tolist() == [True, False]
