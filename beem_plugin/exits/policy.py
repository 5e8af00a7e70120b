"""The contract of every exit rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, NotCalibratedError
from beem_plugin.common.registry import Registrable
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.signals import ExitSignals, decision_dtype
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.trace import ExitTrace


class ExitPolicy(Registrable):
    """
    Decides, exit by exit, which samples of a batch leave. The same object serves replay on a trace, evaluation,
    execution and calibration, so that all of them take the same decisions.

    Exits are numbered from 1. The last exit always accepts; whoever steps the policy sees to that, and the policy's
    own answer there is not used.

    A policy is used in this order: `bind` once, `calibrate` if `is_calibrated` is false, then for each batch `start`
    and, at each exit, `step` with what the exit said about the samples that are still there.
    """

    required_signals: ClassVar[tuple[str, ...]] = ()
    """Signals beside the logits that the model must produce."""

    leaves_early: ClassVar[bool] = True
    """Whether the rule is meant to let anyone leave before the last exit."""

    exit_layers: list[int]
    num_labels: int

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        """
        Tells the policy which network it serves, and lets it check its parameters against it.

        # Parameters

        exit_layers : `Sequence[int]`
            The block that each exit reads, 1-based; the last is the network's depth.
        num_labels : `int`

        # Raises

        `ConfigurationError`
            If a list in the policy does not have the length that this number of exits needs.
        """
        if num_labels < 2:
            raise ConfigurationError(
                f"exit policies compare labels: found num_labels = {num_labels}, allowed: 2 or more"
            )
        self.exit_layers = list(exit_layers)
        self.num_labels = num_labels

    @property
    def num_exits(self) -> int:
        return len(self.exit_layers)

    @property
    def is_calibrated(self) -> bool:
        """Whether the policy can decide: it has all numbers that it needs."""
        return True

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        """What the policy remembers of `batch_size` samples before exit 1."""
        return ExitState()

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        """
        # Returns

        `tuple[Tensor, ExitState]`
            `(batch,)` bool, who leaves here, and the state for the next exit.
        """
        raise TypeError(f"{type(self).__name__} does not define step")

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        """`(batch, labels)` log-probabilities that a sample leaving here is given; by default the exit's own."""
        return signals.log_probabilities

    def score(self, state: ExitState) -> Tensor | None:
        """`(batch,)` the number that was compared with the threshold, after `step`; `None` if the rule has none."""
        return state.tensors.get("score")

    def calibrate(self, trace: ExitTrace) -> CalibrationReport:
        """Fits on `trace` whatever was left open. A policy without open numbers only reports what it does there."""
        from beem_plugin.exits.replay import report_on

        return report_on(self, trace)

    def to_config(self) -> dict[str, Any]:
        """The policy as a config with every number resolved: building it gives this policy without calibration."""
        raise TypeError(f"{type(self).__name__} does not define to_config")

    def check_calibrated(self) -> None:
        """Raises `NotCalibratedError` if the policy cannot decide yet."""
        if not self.is_calibrated:
            raise NotCalibratedError(
                f"{type(self).__name__} has no thresholds or weights yet: give them in the config "
                "(model.exit_policy.thresholds: a number, or a list with one entry an exit but the last), train with "
                "the callback `calibrate_exits`, or calibrate it on a trace (`allennlp replay TRACE --policy P "
                "--calibrate-on OTHER`)"
            )

    @staticmethod
    def zeros(batch_size: int, device: torch.device | str) -> Tensor:
        """`(batch,)` zeros in the decision precision."""
        return torch.zeros(batch_size, dtype=decision_dtype(torch.device(device)), device=device)
