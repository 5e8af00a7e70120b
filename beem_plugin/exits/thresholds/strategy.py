"""How thresholds are chosen: the numbers that every strategy works on, and the strategies' contract."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable

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
        `(samples, exits)` int64: the label a sample would be given if it left there.
    confidences : `Tensor`
        `(samples, exits)` the exit's largest probability.
    labels : `Tensor`
        `(samples,)` int64, -1 where unknown.
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
    def wrong(self) -> Tensor:
        """`(samples, exits)` bool."""
        return self.predictions != self.labels.unsqueeze(1)

    def require_labels(self, strategy: str) -> None:
        """Raises a `ConfigurationError` unless every sample has a label and there is at least one."""
        if len(self) == 0:
            raise ConfigurationError(f"{strategy}: found no calibration sample, needed: at least one")
        unknown = int((self.labels < 0).sum())
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

    def fit(self, table: ScoreTable) -> ThresholdFit:
        raise TypeError(f"{type(self).__name__} does not define fit")


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
