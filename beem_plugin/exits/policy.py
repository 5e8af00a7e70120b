"""The contract of every exit policy."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, DataError, NotCalibratedError, check_number
from beem_plugin.common.recipes import signature_of
from beem_plugin.common.registry import Registrable, names_where, registered_name
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.score_table import SharedScores
from beem_plugin.exits.signals import ExitSignals, decision_dtype, prediction_of
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.trace_interface import Trace, check_signals

DECISION = {"start", "update", "step", "passes", "output", "score"}  # the methods that decide


class ExitPolicy(SharedScores, Registrable):
    """
    Decides at each exit which samples of a batch exit. The same object serves replay on a trace, evaluation, execution
    and calibration, so that all of them take the same decisions.

    Exits are numbered from 1. Every sample exits at the last exit; the caller of `step` ensures that, and ignores what
    the policy returns there.

    A policy is used in this order: `bind` once, `calibrate` if `is_calibrated` is false, then for each batch `start`
    and, at each exit, `step` with the signals of the active samples.

    A policy of your own defines `step`, and `start` if it stores anything between exits; one with thresholds derives
    from `ThresholdPolicy` and defines `update`. The annotated arguments of the constructor are the keys of the config
    block (`thresholds: Thresholds | None` takes a number, a list or a strategy), and attributes. The state is an
    `ExitState`: tensors by name, the samples first, from which engines remove samples that have exited.

    `start`, `step`, `output` and `score` are compiled for GPUs: they consist of tensor operations, have no branch on
    the value of a tensor (`exit_number` and the config may be branched on), and depend on nothing but their arguments
    and the policy's numbers.

    A subclass that changes one of the methods that decide loses an inherited `can_leave` or `needs` that depends on it,
    unless it defines its own.
    """

    required_signals: ClassVar[tuple[str, ...]] = ()
    """Names of signals that the model must produce in addition to logits."""

    probability_signals: ClassVar[tuple[str, ...]] = ()
    """Those of `required_signals` that must lie between 0 and 1."""

    leaves_early: ClassVar[bool] = True
    """Whether samples can exit before the last exit under the policy."""

    memoryless: ClassVar[bool] = False
    """Whether an exit's score depends on that exit only, so that exits where no sample can exit need no head."""

    speed_keys: ClassVar[tuple[str, ...] | None] = None
    """
    The config keys that move the policy along its accuracy-speed curve; other keys make a different policy. `None`, if
    undeclared, means all keys.
    """

    serves_regression: ClassVar[bool] = False
    """Whether the policy supports exits that predict one value: it reads neither probabilities nor label indices."""

    adapts: ClassVar[bool] = False
    """Whether the policy changes while it is used; engines then run one batch after the other, and call `observe`."""

    exit_layers: list[int]
    num_labels: int

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls).keys()
        if own & {"step", "passes"} and "can_leave" not in own:
            cls.can_leave = ExitPolicy.can_leave  # type: ignore[method-assign]
        if own & DECISION and not own & {"needs", "memoryless"}:
            cls.needs = ExitPolicy.needs  # type: ignore[method-assign]

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        """
        Sets the block that each exit reads, from 1, the last the depth, and the number of labels, 1 for a
        regression. A `ConfigurationError` if they do not suit the policy.
        """
        check_number("num_labels", num_labels, low=1)
        if num_labels == 1 and not self.serves_regression:
            raise ConfigurationError(
                f"exit policy {self.registered_name}: found a regression, one value an exit, which has no "
                f"probabilities to be sure by; allowed: {names_where(ExitPolicy, 'serves_regression')}"
            )
        self.exit_layers = list(exit_layers)
        self.num_labels = num_labels

    @property
    def registered_name(self) -> str:
        """The policy's name in a config."""
        return registered_name(ExitPolicy, self)

    @property
    def num_exits(self) -> int:
        return len(self.exit_layers)

    @property
    def is_calibrated(self) -> bool:
        """Whether the policy has all numbers that `step` needs."""
        return True

    def check_can_be_fitted(self) -> None:
        """Raises a `ConfigurationError` if the config lacks what `calibrate` needs. Called before a training."""
        if isinstance(inner := getattr(self, "policy", None), ExitPolicy):
            inner.check_can_be_fitted()

    @property
    def needs_all_labels(self) -> bool:
        """Whether the policy reads all probabilities; by default if its output is not the exit's."""
        return type(self).output is not ExitPolicy.output

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        """The state of `batch_size` samples before exit 1."""
        return ExitState()

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        """`(batch,)` bool, whether each sample exits at this exit, and the state for the next exit."""
        raise ConfigurationError(f"exit policy {self.registered_name}: found a class without `step`, which it needs")

    def checked_step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        """`step`, with an error for results of another form."""
        found: Any = self.step(exit_number, signals, state)
        leaves, after = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        is_mask = isinstance(leaves, Tensor) and leaves.dtype == torch.bool and leaves.dim() == 1
        if not is_mask or not isinstance(after, ExitState):
            shown = f"a tensor {leaves.dtype}".replace("torch.", "") if isinstance(leaves, Tensor) else repr(leaves)
            raise ConfigurationError(
                f"exit policy {self.registered_name}: `step` returned {shown} and {type(after).__name__}, allowed: a "
                "tensor (batch,) of bool, the samples that exit, and an ExitState"
            )
        return leaves, after

    def can_leave(self, exit_number: int) -> bool:
        """Whether a sample can exit here for any signals; if not, engines do not read the result of `step`."""
        return True

    def needs(self, exit_number: int) -> bool:
        """
        Whether the signals of an exit before the last can matter, to an exit there or to a later decision,
        output or score. If not, engines compute neither the head nor the step.
        """
        return True

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        """`(batch, labels)` log-probabilities, or a regression's value, of samples that exit here, after `step`."""
        return signals.output

    def prediction(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        """`(batch,)` int64: the label of samples that exit at this exit; the value of a regression."""
        if self.needs_all_labels:
            return prediction_of(self.output(exit_number, signals, state))
        return signals.prediction

    def score(self, state: ExitState) -> Tensor | None:
        """`(batch,)` the number compared with the threshold, after `step`; `None` if the policy has none."""
        return state.tensors.get("score")

    def observe(self, exits: Tensor, output: Tensor) -> None:
        """Called after each batch with the `(batch,)` exits and `(batch, labels)` log-probabilities of its samples."""

    def summary(self) -> str:
        """One line on what a policy that adapts has learned; empty for others."""
        return ""

    def exits_on(self, trace: Trace) -> Tensor | None:
        """`(samples,)` exits of a policy that adapts, from its start, sample by sample; `None` of others."""
        return None

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        """A sentence for each threshold that no score can reach, or, `with_ends`, only at the end of its range."""
        return []

    @property
    def shares_fit(self) -> bool:
        """Whether `adopt` completes calibration: the limits are given, or there are none to fit."""
        return type(self).calibrate is ExitPolicy.calibrate

    def adopt(self, fitted: "ExitPolicy") -> None:
        """Copies the fitted parameters of a calibrated policy whose config differs only in its limits."""

    def calibrate(self, trace: Trace, parameters: Trace | None = None) -> CalibrationReport:
        """Fits what is not set, and reports on `trace`; `parameters` is another trace for what the score needs."""
        return trace.report_on(self)

    def parameters(self) -> dict[str, Any]:
        """The config keys but `type`; by default the arguments of the constructor, from attributes of their names."""
        return arguments_of(self)

    def to_config(self) -> dict[str, Any]:
        """The policy as a config with all numbers: building it gives this policy without calibration."""
        self.check_calibrated()
        return {"type": self.registered_name, **self.parameters()}

    def check_calibrated(self) -> None:
        """Raises `NotCalibratedError` if the policy cannot decide yet."""
        if not self.is_calibrated:
            raise NotCalibratedError(
                f"{self.registered_name} has no thresholds or weights yet: give them in the config "
                "(model.exit_policy.thresholds: a number, or a list with one entry per exit but the last), train with "
                "the callback `calibrate_exits`, or fit it on held-out data (`allennlp calibrate ARCHIVE --data DATA "
                "--policy P --output-archive NEW.tar.gz`, or `--calibrate-on TRACE` of `allennlp replay`)"
            )

    def check_trace(self, trace: Trace, where: str) -> None:
        """Raises an error if `trace` lacks what the policy needs, or has probabilities outside of 0 to 1."""
        check_signals(self, trace.signals, where)
        if self.needs_all_labels and not trace.has_logits:
            raise ConfigurationError(
                f"{self.registered_name} needs the probabilities of all labels at every exit, {where} has only the "
                "most probable one, its probability, the margin and the entropy, as all traces of captions and tags"
            )
        for name in self.probability_signals:
            outside = (trace.signals[name] < 0) | (trace.signals[name] > 1)
            if bool(outside.any()):
                sample, column = outside.nonzero()[0].tolist()
                found = float(trace.signals[name][sample, column])
                raise DataError(f"signal {name!r} of sample {sample}: found {found}, allowed: 0 to 1")

    @staticmethod
    def zeros(batch_size: int, device: torch.device | str) -> Tensor:
        """`(batch,)` zeros in the decision precision."""
        return torch.zeros(batch_size, dtype=decision_dtype(torch.device(device)), device=device)


def arguments_of(policy: ExitPolicy, *without: str) -> dict[str, Any]:
    """The constructor's arguments that are not `None`, as config values."""
    names = (name for name in signature_of(type(policy).__init__, type(policy)).arguments if name not in without)
    values = {name: value for name in names if (value := getattr(policy, name)) is not None}
    return {name: value.to_config() if hasattr(value, "to_config") else value for name, value in values.items()}
