"""The policies that compare a score with a threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.calibration.replay import check_trace_serves, report_on
from beem_plugin.calibration.report import CalibrationReport
from beem_plugin.calibration.score_key import fingerprint
from beem_plugin.calibration.thresholds import NEVER, FixedThresholds, ScoreTable, ThresholdStrategy
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, NotCalibratedError, nearest_first
from beem_plugin.exits.plain import is_of_the_rule, same_for_all
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState

Thresholds = ThresholdStrategy | float | str | list
"""What a config may say: a strategy, a number for all exits, `"never"`, or one entry for each exit but the last."""

LIMITS = ("strategy", "values")
"""The attributes of a `ThresholdPolicy` that its score does not depend on."""


class ThresholdPolicy(ExitPolicy):
    """
    A rule that computes a score at each exit and lets a sample leave when the score passes the exit's threshold. A
    subclass says what the score is; thresholds, their calibration and the comparison are here, once for all rules.

    # Parameters

    thresholds : `ThresholdStrategy` or `float` or `str` or `list`, optional (default = `None`)
        A strategy that fits them, or the thresholds themselves: a number for all exits, or a list with an entry for
        every exit but the last; `"never"` is allowed. Without, the policy cannot decide until it has been calibrated
        with some strategy.
    min_exit : `int`, optional (default = `1`)
        The first exit at which a sample may leave.
    """

    speed_keys: ClassVar[tuple[str, ...] | None] = ("thresholds",)

    higher_is_surer: ClassVar[bool] = True
    """Whether a large score means trust (confidence), or a small one (entropy)."""

    strict: ClassVar[bool] = False
    """Whether a score equal to the threshold stays."""

    memoryless: ClassVar[bool] = False
    """Whether an exit's score depends on that exit alone, so that exits where nobody can leave need no head."""

    published_grids: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """The threshold grids of the rule's own paper, by strategy name; without, the observed scores are the grid."""

    def __init__(self, thresholds: Thresholds | None = None, min_exit: int = 1) -> None:
        if min_exit < 1:
            raise ConfigurationError(f"min_exit: found {min_exit}, allowed: 1 or more")
        self.strategy = as_strategy(thresholds)
        self.min_exit = min_exit
        self.values: list[float] | None = None  # in the rule's own units, +-inf for never

    @property
    def never(self) -> float:
        return math.inf if self.higher_is_surer else -math.inf

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        if self.min_exit > self.num_exits:
            raise ConfigurationError(f"min_exit: found {self.min_exit}, allowed: 1 to {self.num_exits}")
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
        return self.values is not None

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        """The state after this exit; its tensor `score` is what is compared with the threshold."""
        raise TypeError(f"{type(self).__name__} does not define update")

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        state = self.update(exit_number, signals, state)
        score = state["score"]
        if exit_number >= self.num_exits:
            return same_for_all(score, True), state
        if exit_number < self.min_exit:
            return same_for_all(score, False), state
        if self.values is None:
            raise NotCalibratedError(f"{self.registered_name} has no thresholds yet")
        return self.passes(score, self.values[exit_number - 1]), state

    def can_leave(self, exit_number: int) -> bool:
        decides = (type(self).step, type(self).passes)
        if exit_number >= self.num_exits or decides != (ThresholdPolicy.step, ThresholdPolicy.passes):
            return True
        return exit_number >= self.min_exit and (self.values is None or self.values[exit_number - 1] != self.never)

    def needs(self, exit_number: int) -> bool:
        return not (self.memoryless and is_of_the_rule(self, "memoryless")) or self.can_leave(exit_number)

    def passes(self, score: Tensor, threshold: float) -> Tensor:
        """`(batch,)` bool: whether `score` lets a sample leave under `threshold`, both in the rule's own units."""
        if self.higher_is_surer:
            return score > threshold if self.strict else score >= threshold
        return score < threshold if self.strict else score <= threshold

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        """The least and the largest score that the exit may give, both included; `None` if nobody can say."""
        return None

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        numbers = range(self.min_exit, self.num_exits)
        ranges = {number: found for number in numbers if (found := self.score_range(number)) is not None}
        if self.values is None or len(ranges) < len(numbers):
            return []
        side = 1 if self.higher_is_surer else 0
        given = {number: self.values[number - 1] for number in numbers if self.values[number - 1] != self.never}
        missed = [
            number
            for number, value in given.items()
            if not bool(self.passes(ranges[number][side], value))  # type: ignore[arg-type]  # as plain numbers
            and (with_ends or ranges[number][side] != value)
        ]
        # Where scores grow from exit to exit, a threshold that early ones cannot reach is nothing strange.
        if not missed or (len(missed) < len(given) and len({ranges[number][side] for number in given}) > 1):
            return []
        low, high = ranges[missed[-1]]
        verb = ("above" if self.strict else "at least") if side else ("below" if self.strict else "at most")
        listed = ", ".join(f"{value:.6g}" for value in dict.fromkeys(given[number] for number in missed))
        where = "before the last exit" if len(missed) == len(given) else f"at exit {', '.join(map(str, missed))}"
        return [
            f"{self.registered_name}.thresholds: found {listed}, but the score must be {verb} that and runs from "
            f"{low:.4g} to {high:.4g}: nobody can leave {where}"
        ]

    def score_table(self, trace: ExitTrace) -> ScoreTable:
        """The oriented score, and the label given, of every sample of `trace` at every exit."""
        check_trace_serves(self, trace, "the calibration trace")
        state = self.start(len(trace), trace.num_exits, "cpu")
        scores, predictions, confidences = [], [], []
        for exit_number in range(1, trace.num_exits + 1):
            signals = trace.exit_signals(exit_number)
            state = self.update(exit_number, signals, state)
            score = state["score"] if self.higher_is_surer else -state["score"]
            scores.append(torch.full_like(score, -math.inf) if exit_number < self.min_exit else score)
            predictions.append(self.prediction(exit_number, signals, state))
            confidences.append(signals.confidence)
        return ScoreTable(
            scores=torch.stack(scores, 1),
            predictions=torch.stack(predictions, 1),
            confidences=torch.stack(confidences, 1),
            labels=trace.labels,
            exit_layers=trace.exit_layers,
            higher_is_surer=self.higher_is_surer,
            strict=self.strict,
            metric=trace.metric,
            published_grids=self.published_grids,
        )

    def score_key(self) -> bytes | None:
        # A subclass that decides in its own way is not known to leave at the first score that passes.
        own = (ThresholdPolicy.step, ThresholdPolicy.passes, ThresholdPolicy.score_table)
        if (type(self).step, type(self).passes, type(self).score_table) != own:
            return None
        return fingerprint(self, without=LIMITS)

    def scores(self, trace: ExitTrace) -> ScoreTable:
        return self.score_table(trace)

    def limits(self) -> list[float]:
        assert self.values is not None, "calibrated before use"
        return [value if self.higher_is_surer else -value for value in self.values]

    @property
    def shares_fit(self) -> bool:
        return type(self).calibrate is ThresholdPolicy.calibrate and isinstance(self.strategy, FixedThresholds)

    def adopt(self, fitted: ExitPolicy) -> None:
        vars(self).update({name: value for name, value in vars(fitted).items() if name not in LIMITS})
        self.bind(self.exit_layers, self.num_labels)

    def calibrate(self, trace: ExitTrace) -> CalibrationReport:
        self.bind(trace.exit_layers, trace.num_labels)
        self.fit_parameters(trace)
        if self.strategy is None:
            raise ConfigurationError(
                f"{self.registered_name}.thresholds: found nothing, allowed: a number, a list, or a strategy, one of "
                f"{', '.join(sorted(ThresholdStrategy.list_available()))}"
            )
        table = self.score_table(trace)
        fit = self.strategy.fit(table)
        self.values = [table.orient(value) for value in fit.thresholds]
        return report_on(
            self,
            trace,
            thresholds=self.native_thresholds(),
            weights=self.report_weights(),
            warnings=fit.warnings,
            details=fit.details,
        )

    def fit_parameters(self, trace: ExitTrace) -> None:
        """Fits what the score itself needs, before the thresholds; nothing by default."""

    def report_weights(self) -> list[float] | None:
        return None

    def native_thresholds(self) -> list[float | str]:
        """The thresholds as a config writes them."""
        return [value if math.isfinite(value) else NEVER for value in self.values or []]

    def parameters(self) -> dict[str, Any]:
        """The config keys beside `type`, `thresholds` and `min_exit`, resolved."""
        return {}

    def to_config(self) -> dict[str, Any]:
        self.check_calibrated()
        config: dict[str, Any] = {"type": self.registered_name, **self.parameters()}
        config["thresholds"] = self.native_thresholds()
        if self.min_exit != 1:
            config["min_exit"] = self.min_exit
        return config


def as_strategy(thresholds: Thresholds | None) -> ThresholdStrategy | None:
    """A number, `"never"` or a list as `fixed`; the name of a strategy as that strategy with its defaults."""
    if thresholds is None or isinstance(thresholds, ThresholdStrategy):
        return thresholds
    if isinstance(thresholds, str) and thresholds != NEVER:
        strategies = ThresholdStrategy.list_available()
        if thresholds not in strategies and "." not in thresholds:
            allowed = ", ".join(nearest_first(thresholds, [*strategies, NEVER]))
            raise ConfigurationError(
                f"thresholds: found {thresholds!r}, allowed: a number, a list of them, or one of {allowed}"
            )
        return ThresholdStrategy.from_params({"type": thresholds})
    return FixedThresholds(thresholds)
