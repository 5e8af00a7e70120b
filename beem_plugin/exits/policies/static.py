"""The same exit for every sample."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from beem_plugin.common.errors import check_number
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState


@ExitPolicy.register("fixed_exit")
class FixedExit(ExitPolicy):
    """
    Every sample exits at the same exit: reduced depth at inference.

    Registered as an `ExitPolicy` with name "fixed_exit".

    # Parameters

    exit : `int`
        1-based.
    """

    speed_keys: ClassVar[tuple[str, ...] | None] = ("exit",)
    serves_regression: ClassVar[bool] = True

    def __init__(self, exit: int) -> None:
        self.exit = exit

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        check_number("exit", self.exit, 1, self.num_exits)

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        return signals.flags(exit_number >= self.exit), state

    def can_leave(self, exit_number: int) -> bool:
        return exit_number >= self.exit

    def needs(self, exit_number: int) -> bool:
        return exit_number >= self.exit


@ExitPolicy.register("final")
class Final(FixedExit):
    """
    Full depth: every sample exits at the last exit.

    Registered as an `ExitPolicy` with name "final".
    """

    leaves_early = False
    speed_keys: ClassVar[tuple[str, ...] | None] = None

    def __init__(self) -> None:
        super().__init__(1)

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        self.exit = len(exit_layers)
        super().bind(exit_layers, num_labels)
