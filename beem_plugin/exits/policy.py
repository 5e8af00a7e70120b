"""The contract of every exit rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.calibration.report import CalibrationReport
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, NotCalibratedError
from beem_plugin.common.registry import Registrable, registered_name
from beem_plugin.exits.signals import ExitSignals, decision_dtype, prediction_of
from beem_plugin.exits.state import ExitState

if TYPE_CHECKING:
    from beem_plugin.calibration.thresholds import ScoreTable


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

    speed_keys: ClassVar[tuple[str, ...] | None] = None
    """
    The config keys that move the rule along its accuracy-speed curve; other keys make another rule of it. `None` where
    nobody has said: then all of them do.
    """

    serves_regression: ClassVar[bool] = False
    """
    Whether the rule makes sense where an exit gives one value: it reads neither probabilities nor label indices. The
    entropy of one logit is 0, its probability 1: a rule on confidence would let everybody leave at exit 1.
    """

    plain_numbers: bool = False
    """Whether `step`, `output` and `score` also take one sample as plain numbers: see `exits/plain.py`."""

    exit_layers: list[int]
    num_labels: int

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        """
        Tells the policy which network it serves, and lets it check its parameters against it.

        # Parameters

        exit_layers : `Sequence[int]`
            The block that each exit reads, 1-based; the last is the network's depth.
        num_labels : `int`
            1 for a regression.

        # Raises

        `ConfigurationError`
            If a list in the policy does not have the length that this number of exits needs, or if the task is a
            regression and the rule does not serve one.
        """
        if num_labels < 1:
            raise ConfigurationError(f"exit policy: found num_labels = {num_labels}, allowed: 1 or more")
        if num_labels == 1 and not self.serves_regression:
            raise ConfigurationError(
                f"exit policy {self.registered_name}: found a regression, one value an exit, which has no "
                f"probabilities to be sure by; allowed: {', '.join(regression_policies())}"
            )
        self.exit_layers = list(exit_layers)
        self.num_labels = num_labels

    @property
    def registered_name(self) -> str:
        """What a config calls the rule."""
        return registered_name(ExitPolicy, self)

    @property
    def num_exits(self) -> int:
        return len(self.exit_layers)

    @property
    def is_calibrated(self) -> bool:
        """Whether the policy can decide: it has all numbers that it needs."""
        return True

    @property
    def needs_all_labels(self) -> bool:
        """
        Whether the rule looks at the probabilities of all labels, not only at the most probable one, its probability,
        the margin and the entropy. By default: whether it gives a sample something other than the exit's own output.
        """
        return type(self).output is not ExitPolicy.output

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        """What the policy remembers of `batch_size` samples before exit 1."""
        return ExitState()

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        """
        Depends on what it is given and on the policy's numbers alone: captured graphs do not run it again.

        # Returns

        `tuple[Tensor, ExitState]`
            `(batch,)` bool, who leaves here, and the state for the next exit.
        """
        raise TypeError(f"{type(self).__name__} does not define step")

    def can_leave(self, exit_number: int) -> bool:
        """
        Whether anything that the exit may say lets a sample leave there. Where not, an engine does not ask who left.
        The last exit does not count.
        """
        return True

    def needs(self, exit_number: int) -> bool:
        """
        Whether what the exit says can matter: somebody can leave there, or a later decision, output or score depends
        on it. Where not, an engine neither computes the exit's head nor steps the policy. The last exit does not count.
        """
        return True

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        """
        `(batch, labels)` log-probabilities, or a regression's value, that a sample leaving here is given; by default
        the exit's own.
        """
        return signals.output

    def prediction(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        """`(batch,)` int64: the label that a sample leaving here is given; the value of a regression."""
        if self.needs_all_labels:
            return prediction_of(self.output(exit_number, signals, state))
        return signals.prediction

    def score(self, state: ExitState) -> Tensor | None:
        """`(batch,)` the number that was compared with the threshold, after `step`; `None` if the rule has none."""
        return state.tensors.get("score")

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        """
        A sentence for each number of the rule that nothing an exit may say can reach, so that nobody leaves by it.
        Known once the policy is bound and calibrated.

        # Parameters

        with_ends : `bool`, optional (default = `True`)
            Whether also for the very end of a range, where the rule does not count it in: a grid may well have that.
        """
        return []

    def score_key(self) -> bytes | None:
        """
        For rules by which a sample leaves at the first exit whose score passes a limit, where the score does not depend
        on the limits: everything that the score depends on. Policies of equal keys share their `scores`, so that many
        of them are replayed at once. `None` for other rules, which are stepped one by one.
        """
        return None

    def scores(self, trace: ExitTrace) -> ScoreTable:
        """What is compared with `limits`, and the labels given; only where there is a `score_key`."""
        raise TypeError(f"{type(self).__name__} has no scores apart from its limits")

    def limits(self) -> list[float]:
        """The oriented limits of `scores`, one an exit but the last; `inf` for never."""
        raise TypeError(f"{type(self).__name__} has no limits apart from its scores")

    @property
    def shares_fit(self) -> bool:
        """Whether `adopt` leaves nothing to calibrate: the policy's limits are given, or it has nothing to fit."""
        return type(self).calibrate is ExitPolicy.calibrate

    def adopt(self, fitted: ExitPolicy) -> None:
        """Takes over what `fitted` has learnt: a policy of the same config except for its limits, calibrated."""

    def calibrate(self, trace: ExitTrace) -> CalibrationReport:
        """Fits on `trace` whatever was left open. A policy without open numbers only reports what it does there."""
        from beem_plugin.calibration.replay import report_on

        return report_on(self, trace)

    def to_config(self) -> dict[str, Any]:
        """The policy as a config with every number resolved: building it gives this policy without calibration."""
        raise TypeError(f"{type(self).__name__} does not define to_config")

    def check_calibrated(self) -> None:
        """Raises `NotCalibratedError` if the policy cannot decide yet."""
        if not self.is_calibrated:
            raise NotCalibratedError(
                f"{self.registered_name} has no thresholds or weights yet: give them in the config "
                "(model.exit_policy.thresholds: a number, or a list with one entry an exit but the last), train with "
                "the callback `calibrate_exits`, or calibrate it on a trace (`allennlp replay TRACE --policy P "
                "--calibrate-on OTHER`)"
            )

    @staticmethod
    def zeros(batch_size: int, device: torch.device | str) -> Tensor:
        """`(batch,)` zeros in the decision precision."""
        return torch.zeros(batch_size, dtype=decision_dtype(torch.device(device)), device=device)


def regression_policies() -> list[str]:
    """The registered rules that serve a regression."""
    names = ExitPolicy.list_available()
    return sorted(name for name in names if ExitPolicy.resolve_class_name(name)[0].serves_regression)
