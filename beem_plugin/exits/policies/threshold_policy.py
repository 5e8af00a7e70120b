"""The base class of policies that compare a score with a threshold."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, NotCalibratedError, check_number
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.policy import ExitPolicy, arguments_of
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.threshold_strategy import NEVER, FixedThresholds, Thresholds, ThresholdStrategy, as_strategy
from beem_plugin.exits.trace_interface import Trace

LIMITS = ("strategy", "values")  # the attributes of a `ThresholdPolicy` that its score does not depend on


class ThresholdPolicy(ExitPolicy):
    """
    Computes a score at each exit; a sample exits when its score passes the exit's threshold. A subclass defines the
    score in `update`; thresholds, their calibration and the comparison are defined here for all of them.

    # Parameters

    thresholds : `ThresholdStrategy` or `float` or `str` or `list`, optional (default = `None`)
        A strategy that fits them, or the thresholds themselves: a number for all exits, or a list with an entry for
        every exit but the last; `"never"` is allowed. Without, the policy cannot decide until it has been calibrated
        with some strategy.
    min_exit : `int`, optional (default = `1`)
        The first exit at which a sample may exit.
    """

    speed_keys: ClassVar[tuple[str, ...] | None] = ("thresholds",)

    higher_is_more_confident: ClassVar[bool] = True
    """Whether a larger score means more confidence (a probability) or less (an entropy). Alias: `higher_is_surer`."""

    strict: ClassVar[bool] = False  # whether a sample whose score equals the threshold does not exit
    bounds: ClassVar[tuple[float, float] | None] = None
    """The smallest and the largest possible score, if they are the same at every exit; see `score_range`."""

    default_thresholds: ClassVar[Thresholds | None] = None

    fitted: ClassVar[str | None] = None
    """The attribute that holds the numbers which the score needs, `None` until they are given or fitted."""

    published_grids: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """The threshold grids of the policy's own paper by strategy name; without, the observed scores are the grid."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "higher_is_surer" in vars(cls):  # the attribute's former name
            cls.higher_is_more_confident = vars(cls)["higher_is_surer"]

    def __init__(self, thresholds: Thresholds | None = None, min_exit: int = 1) -> None:
        check_number("min_exit", min_exit, low=1)
        self.strategy = as_strategy(self.default_thresholds if thresholds is None else thresholds)
        self.min_exit = min_exit
        self.values: list[float] | None = None  # in the policy's own unit, +-inf for never

    @property
    def higher_is_surer(self) -> bool:
        return self.higher_is_more_confident

    @property
    def never(self) -> float:
        return math.inf if self.higher_is_more_confident else -math.inf

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        check_number("min_exit", self.min_exit, 1, self.num_exits)
        if self.strategy is not None:
            self.strategy.check_task(num_labels)
        if isinstance(self.strategy, FixedThresholds):
            resolved = self.strategy.resolve(self.num_exits)
            self.values = [self.never if value is None else value for value in resolved]
        elif self.values is not None and len(self.values) != self.num_exits - 1:
            raise ConfigurationError(
                f"the policy was calibrated for {len(self.values) + 1} exits, found a network of {self.num_exits}"
            )

    @property
    def is_calibrated(self) -> bool:
        return self.values is not None and self.has_parameters

    @property
    def has_parameters(self) -> bool:
        """Whether the numbers that the score needs are given or fitted."""
        return self.fitted is None or getattr(self, self.fitted) is not None

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        """The state after this exit; its tensor `score` is compared with the threshold."""
        raise TypeError(f"{type(self).__name__} does not define update")

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        state = self.update(exit_number, signals, state)
        if exit_number >= self.num_exits or exit_number < self.min_exit:
            return signals.flags(exit_number >= self.num_exits), state
        if self.values is None:
            raise NotCalibratedError(f"{self.registered_name} has no thresholds yet")
        return self.passes(state["score"], self.values[exit_number - 1]), state

    def can_leave(self, exit_number: int) -> bool:
        if exit_number >= self.num_exits:
            return True
        return exit_number >= self.min_exit and (self.values is None or self.values[exit_number - 1] != self.never)

    def needs(self, exit_number: int) -> bool:
        return not self.memoryless or self.can_leave(exit_number)

    def passes(self, score: Tensor, threshold: float) -> Tensor:
        """`(batch,)` bool: whether samples with `score` exit under `threshold`, both in the policy's own unit."""
        if self.higher_is_more_confident:
            return score > threshold if self.strict else score >= threshold
        return score < threshold if self.strict else score <= threshold

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        """The smallest and the largest possible score of the exit, inclusive; `None` if unknown."""
        return self.bounds

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        numbers = range(self.min_exit, self.num_exits)
        ranges = {number: found for number in numbers if (found := self.score_range(number)) is not None}
        if self.values is None or len(ranges) < len(numbers):
            return []
        side = 1 if self.higher_is_more_confident else 0
        given = {number: self.values[number - 1] for number in numbers if self.values[number - 1] != self.never}
        missed = [
            number
            for number, value in given.items()
            if not bool(self.passes(ranges[number][side], value))  # type: ignore[arg-type]  # as plain numbers
            and (with_ends or ranges[number][side] != value)
        ]
        # Where scores grow from exit to exit, a threshold out of reach of early exits is normal.
        if not missed or (len(missed) < len(given) and len({ranges[number][side] for number in given}) > 1):
            return []
        low, high = ranges[missed[-1]]
        verb = ("above" if self.strict else "at least") if side else ("below" if self.strict else "at most")
        listed = ", ".join(f"{value:.6g}" for value in dict.fromkeys(given[number] for number in missed))
        where = "before the last exit" if len(missed) == len(given) else f"at exit {', '.join(map(str, missed))}"
        return [
            f"{self.registered_name}.thresholds: found {listed}, but the score must be {verb} that and runs from "
            f"{low:.4g} to {high:.4g}: no sample can exit {where}"
        ]

    def score_table(self, trace: Trace) -> ScoreTable:
        """The oriented score of every sample of `trace` at every exit, and the predicted label."""
        self.check_trace(trace, "the calibration trace")
        table = ScoreTable.of(trace, self.start(len(trace), trace.num_exits), self.update, self.prediction)
        scores = table.scores if self.higher_is_more_confident else -table.scores
        scores[:, : self.min_exit - 1] = -math.inf
        own = {name: getattr(self, name) for name in ("higher_is_more_confident", "strict", "published_grids")}
        return replace(table, scores=scores, **own)

    def score_key(self) -> bytes | None:
        # A subclass with another decision need not exit at the first score that passes.
        own = (ThresholdPolicy.step, ThresholdPolicy.passes, ThresholdPolicy.score_table)
        changed = (type(self).step, type(self).passes, type(self).score_table) != own
        return None if changed else self.key_without(*LIMITS)

    def scores(self, trace: Trace) -> ScoreTable:
        return self.score_table(trace)

    def limits(self) -> list[float]:
        assert self.values is not None, "calibrated before use"
        return [value if self.higher_is_more_confident else -value for value in self.values]

    @property
    def shares_fit(self) -> bool:
        return type(self).calibrate is ThresholdPolicy.calibrate and isinstance(self.strategy, FixedThresholds)

    def adopt(self, fitted: ExitPolicy) -> None:
        vars(self).update({name: value for name, value in vars(fitted).items() if name not in LIMITS})
        self.bind(self.exit_layers, self.num_labels)

    def check_can_be_fitted(self) -> None:
        if self.strategy is None:
            raise ConfigurationError(
                f"{self.registered_name}.thresholds: found nothing, allowed: a number, a list, a speed-up "
                f"(--speedup, `speedup=`), or a strategy: {', '.join(sorted(ThresholdStrategy.list_available()))}"
            )

    def calibrate(self, trace: Trace, parameters: Trace | None = None) -> CalibrationReport:
        self.bind(trace.exit_layers, trace.num_labels)
        self.fit_parameters(trace if parameters is None else parameters)
        self.check_can_be_fitted()
        assert self.strategy is not None, "it was checked"
        table = self.score_table(trace)
        fit = self.strategy.fit(table)
        self.values = [table.orient(value) for value in fit.thresholds]
        fitted = {"thresholds": self.native_thresholds(), "weights": self.report_weights()}
        return trace.report_on(self, **fitted, warnings=fit.warnings, details=fit.details)

    def fit_parameters(self, trace: Trace) -> None:
        """Fits what the score itself needs, before the thresholds; nothing by default."""

    def report_weights(self) -> list[float] | None:
        return None

    def native_thresholds(self) -> list[float | str]:
        """The thresholds as in a config."""
        return [value if math.isfinite(value) else NEVER for value in self.values or []]

    def parameters(self) -> dict[str, Any]:
        """The config keys except `type`, `thresholds` and `min_exit`, with all numbers."""
        return arguments_of(self, "threshold", "thresholds", "min_exit")

    def to_config(self) -> dict[str, Any]:
        min_exit = {} if self.min_exit == 1 else {"min_exit": self.min_exit}
        return {**super().to_config(), "thresholds": self.native_thresholds(), **min_exit}
