"""How thresholds are chosen: the numbers that every strategy works on, and the strategies' contract."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.known_labels import known_labels
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable, registered_name

NEVER = "never"
"""The threshold that nobody passes, as configs and reports write it."""

OBSERVED = "observed"
"""The grid of all scores that the calibration data show."""


@dataclass
class ScoreTable:
    """
    What a rule would have compared with its thresholds, for every calibration sample at every exit. Scores are
    *oriented*: larger means more trusted, whatever the rule's own units are (entropies are negated), so that a
    strategy serves every rule. A rule's score never depends on its thresholds, so one table serves all of them.

    # Parameters

    scores : `Tensor`
        `(samples, exits)` oriented, in the decision precision; `-inf` where the rule may not leave.
    predictions : `Tensor`
        `(samples, exits)` int64: the label a sample would be given if it left there; of a regression float64, the
        value.
    confidences : `Tensor`
        `(samples, exits)` the exit's largest probability.
    labels : `Tensor`
        `(samples,)` int64, -1 where unknown; of a regression floating, NaN where unknown.
    exit_layers : `list[int]`
    higher_is_surer : `bool`
        Whether oriented scores are the rule's own, or their negatives.
    strict : `bool`
        Whether a score equal to the threshold stays.
    metric : `str`
        The task's metric.
    published_grids : `Mapping[str, Sequence]`, optional (default = `{}`)
        The grids that the rule's own paper gives, by strategy name. A strategy without a grid in the config takes the
        rule's published one, and the observed scores where there is none: another rule's grid makes no sense for it.
    tolerance : `float`, optional (default = `None`)
        Of a regression: values that lie farther apart than this are not the same, so that errors can be counted.
    """

    scores: Tensor
    predictions: Tensor
    confidences: Tensor
    labels: Tensor
    exit_layers: list[int]
    higher_is_surer: bool
    strict: bool
    metric: str = "accuracy"
    published_grids: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tolerance: float | None = None

    def __len__(self) -> int:
        return self.scores.shape[0]

    @property
    def num_exits(self) -> int:
        return self.scores.shape[1]

    def passes(self, scores: Tensor, threshold: float) -> Tensor:
        """Which of the oriented `scores` pass the oriented `threshold`."""
        return scores > threshold if self.strict else scores >= threshold

    def orient(self, threshold: float) -> float:
        """From the rule's own units to oriented ones, or back."""
        return threshold if self.higher_is_surer else -threshold

    def exits(self, thresholds: Sequence[float]) -> Tensor:
        """`(samples,)` int64, where each sample leaves under oriented `thresholds`, one an exit but the last."""
        limits = torch.tensor([*thresholds, -math.inf], dtype=self.scores.dtype)
        leaves = self.scores > limits if self.strict else self.scores >= limits
        leaves[:, -1] = True
        return leaves.to(torch.int64).argmax(1) + 1

    def select(self, rows: Tensor) -> ScoreTable:
        """The table of the samples at `rows`, a `(kept,)` int64 tensor, in that order."""
        return replace(
            self,
            scores=self.scores[rows],
            predictions=self.predictions[rows],
            confidences=self.confidences[rows],
            labels=self.labels[rows],
        )

    def predictions_at(self, exits: Tensor) -> Tensor:
        """`(samples,)` the label each sample is given when it leaves at `exits`."""
        return self.predictions.gather(1, (exits - 1).unsqueeze(1)).squeeze(1)

    @property
    def is_regression(self) -> bool:
        return self.predictions.is_floating_point()

    @property
    def known(self) -> Tensor:
        """`(samples,)` bool: whose label is known."""
        return known_labels(self.labels)

    @property
    def wrong(self) -> Tensor:
        """`(samples, exits)` bool: who would be given another label than the true one."""
        return self._differs_from(self.labels.unsqueeze(1))

    @property
    def disagrees(self) -> Tensor:
        """`(samples, exits)` bool: who would be given another label than the last exit's."""
        return self._differs_from(self.predictions[:, -1:])

    def _differs_from(self, other: Tensor) -> Tensor:
        if not self.is_regression:
            return self.predictions != other
        if self.tolerance is None:
            raise ConfigurationError("errors of a regression can be counted only within a tolerance: found none")
        # What is off by exactly the tolerance is within it, rounding or no.
        return (self.predictions - other).abs() > self.tolerance + 1e-9

    def squared_errors(self, other: Tensor) -> Tensor:
        """`(samples, exits)`: of a regression, the squared distances to the values `other`, `(samples,)`."""
        return (self.predictions - other.to(self.predictions.dtype).unsqueeze(1)) ** 2

    def require_labels(self, strategy: str) -> None:
        """Raises a `ConfigurationError` unless every sample has a label and there is at least one."""
        if len(self) == 0:
            raise ConfigurationError(f"{strategy}: found no calibration sample, needed: at least one")
        unknown = int((~self.known).sum())
        if unknown:
            raise ConfigurationError(
                f"{strategy} needs labelled calibration data: found {unknown} of {len(self)} samples without a label"
            )


@dataclass
class ThresholdFit:
    """
    # Parameters

    thresholds : `list[float]`
        Oriented, one an exit but the last; `inf` for never.
    warnings : `list[str]`
    details : `dict[str, Any]`
        JSON-able evidence beyond what every report holds.
    """

    thresholds: list[float]
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


class ThresholdStrategy(Registrable):
    """Chooses a threshold for every exit but the last from a `ScoreTable`."""

    serves_regression: bool = False
    """Whether it makes sense of values without counting which of them are wrong."""

    tolerance: float | None = None
    """In a regression, for strategies that count errors: values farther off than this are."""

    def check_task(self, num_labels: int) -> None:
        """Raises a `ConfigurationError` if it cannot be fitted where an exit gives so many logits."""
        if num_labels == 1 and not self.serves_regression and self.tolerance is None:
            named = inspect.signature(type(self).__init__).parameters
            key = "; or a `tolerance`, the largest distance that is no error" if "tolerance" in named else ""
            raise ConfigurationError(
                f"thresholds: {registered_name(ThresholdStrategy, self)} counts errors, and values of a regression are "
                f"never quite right; allowed: {', '.join(regression_strategies())}{key}"
            )
        if num_labels > 1 and self.tolerance is not None:
            raise ConfigurationError(
                f"thresholds.tolerance: found {self.tolerance} for {num_labels} labels, allowed: for a regression only"
            )

    def fit(self, table: ScoreTable) -> ThresholdFit:
        raise TypeError(f"{type(self).__name__} does not define fit")


def regression_strategies() -> list[str]:
    """The registered strategies that need no tolerance to serve a regression."""
    names = ThresholdStrategy.list_available()
    return sorted(name for name in names if ThresholdStrategy.resolve_class_name(name)[0].serves_regression)


def check_tolerance(tolerance: float | None) -> float | None:
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise ConfigurationError(f"thresholds.tolerance: found {tolerance}, allowed: 0 or more")
    return tolerance


def parse_threshold(value: object, key: str) -> float | None:
    """A number as a float, `"never"` as `None`; anything else is a `ConfigurationError` that names `key`."""
    if value == NEVER:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ConfigurationError(f'{key}: found {value!r}, allowed: a finite number or "{NEVER}"')


def parse_grid(grid: Sequence[object], key: str) -> list[float | None]:
    """The entries of a threshold grid, in the rule's own units; `None` for never."""
    if not grid:
        raise ConfigurationError(f"{key}: found an empty list, allowed: one threshold or more")
    return [parse_threshold(value, f"{key}.{index}") for index, value in enumerate(grid)]


def oriented_grid(grid: Sequence[float | None], table: ScoreTable) -> list[float]:
    """The distinct entries of `grid`, oriented, from the most permissive to never."""
    return sorted({math.inf if value is None else table.orient(value) for value in grid})
