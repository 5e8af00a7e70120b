"""The base class of policies around another policy."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState


class WrappedPolicy(ExitPolicy):
    """Does what the policy inside does; a subclass changes a part of it."""

    speed_keys: ClassVar[tuple[str, ...] | None] = ()  # those of the inner policy

    def __init__(self, policy: ExitPolicy) -> None:
        self.policy = policy
        self.required_signals = policy.required_signals  # type: ignore[misc]  # those of the inner policy
        self.probability_signals = policy.probability_signals  # type: ignore[misc]
        self.leaves_early = policy.leaves_early  # type: ignore[misc]
        self.adapts = policy.adapts  # type: ignore[misc]

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        self.policy.bind(exit_layers, num_labels)

    @property
    def is_calibrated(self) -> bool:
        return self.policy.is_calibrated

    def seen(self, exit_number: int, signals: ExitSignals) -> ExitSignals:
        """The signals that the inner policy reads."""
        return signals

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return self.policy.start(batch_size, num_exits, device)

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        return self.policy.step(exit_number, self.seen(exit_number, signals), state)

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        return self.policy.output(exit_number, self.seen(exit_number, signals), state)

    def score(self, state: ExitState) -> Tensor | None:
        return self.policy.score(state)

    def can_leave(self, exit_number: int) -> bool:
        return self.policy.can_leave(exit_number)

    def needs(self, exit_number: int) -> bool:
        return self.policy.needs(exit_number)

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        return self.policy.out_of_reach(with_ends)

    def observe(self, exits: Tensor, output: Tensor) -> None:
        self.policy.observe(exits, output)

    def summary(self) -> str:
        return self.policy.summary()
