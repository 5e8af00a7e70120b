"""Base class of threshold strategies, thresholds given in the config, and the candidates of a strategy."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number, nearest_first
from beem_plugin.common.registry import Registrable, names_where, registered_name
from beem_plugin.exits.score_table import ScoreTable

NEVER = "never"  # the threshold that no sample passes, as configs and reports write it


@dataclass
class ThresholdFit:
    thresholds: list[float]  # oriented, one per exit but the last; `inf` for never
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # further evidence for the report, JSON-able


class ThresholdStrategy(Registrable):
    """Chooses a threshold for every exit but the last from a `ScoreTable`."""

    serves_regression: bool = False  # whether it works on values without counting which of them are wrong
    tolerance: float | None = None  # in a regression, for strategies that count errors: a larger difference is an error

    def check_task(self, num_labels: int) -> None:
        """Raises a `ConfigurationError` if the strategy cannot be fitted to exits with this number of logits."""
        if num_labels == 1 and not self.serves_regression and self.tolerance is None:
            named = inspect.signature(type(self).__init__).parameters
            key = "; or a `tolerance`, the largest distance that is no error" if "tolerance" in named else ""
            raise ConfigurationError(
                f"thresholds: {registered_name(ThresholdStrategy, self)} counts errors, and values of a regression are "
                f"never quite right; allowed: {names_where(ThresholdStrategy, 'serves_regression')}{key}"
            )
        if num_labels > 1 and self.tolerance is not None:
            raise ConfigurationError(
                f"thresholds.tolerance: found {self.tolerance} for {num_labels} labels, allowed: for a regression only"
            )

    def fit(self, table: ScoreTable) -> ThresholdFit:
        raise TypeError(f"{type(self).__name__} does not define fit")


@ThresholdStrategy.register("fixed")
class FixedThresholds(ThresholdStrategy):
    """
    Thresholds given in the config. A bare number or list means this.

    Registered as a `ThresholdStrategy` with name "fixed".

    # Parameters

    values : `float` or `list` or `str`
        One number for all exits, or a list with one entry for every exit but the last; `"never"` is allowed. In the
        policy's own unit.
    """

    serves_regression = True

    def __init__(self, values: float | list | str) -> None:
        self.values: float | None | list[float | None]
        if isinstance(values, list):
            # A network with a single exit has no thresholds: its resolved config holds an empty list.
            self.values = parse_grid(values, "thresholds") if values else []
        else:
            self.values = parse_threshold(values, "thresholds")

    def resolve(self, num_exits: int) -> list[float | None]:
        """One threshold per exit but the last, in the policy's own unit; `None` for never."""
        if not isinstance(self.values, list):
            return [self.values] * (num_exits - 1)
        if len(self.values) != num_exits - 1:
            raise ConfigurationError(
                f"thresholds: found a list of {len(self.values)}, allowed: {num_exits - 1} entries, one for every exit "
                f"but the last of {num_exits}, which always accepts; or a single number for all of them"
            )
        return list(self.values)

    def fit(self, table: ScoreTable) -> ThresholdFit:
        values = self.resolve(table.num_exits)
        return ThresholdFit([math.inf if value is None else table.orient(value) for value in values])


Thresholds = ThresholdStrategy | float | str | list
"""A strategy or its name, a number for all exits, `"never"`, or a list with an entry for every exit but the last."""


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


def parse_threshold(value: object, key: str) -> float | None:
    """A number as a float, `"never"` as `None`; anything else is a `ConfigurationError` that names `key`."""
    if value == NEVER:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ConfigurationError(f'{key}: found {value!r}, allowed: a finite number or "{NEVER}"')


def parse_grid(grid: Sequence[object], key: str) -> list[float | None]:
    """The entries of a threshold grid, in the policy's own unit; `None` for never."""
    if not grid:
        raise ConfigurationError(f"{key}: found an empty list, allowed: one threshold or more")
    return [parse_threshold(value, f"{key}.{index}") for index, value in enumerate(grid)]


OBSERVED = "observed"  # the grid of all scores of the calibration data


class ThresholdGrid:
    """
    Candidate thresholds: numbers in the policy's own unit and `"never"`; `"observed"`, all scores of the calibration
    data; or k of their quantiles. `None`: those of the policy's paper for `strategy`, else `"observed"`.
    """

    def __init__(self, grid: Sequence[object] | str | int | None, strategy: str = "") -> None:
        if isinstance(grid, int):
            check_number("thresholds.grid", grid, 1)
        elif isinstance(grid, str):
            check_choice("thresholds.grid", grid, (OBSERVED,))
        self.quantiles = grid if isinstance(grid, int) else None
        self.values = (
            parse_grid(grid, "thresholds.grid") if grid is not None and not isinstance(grid, int | str) else []
        )
        self.published_for = strategy if grid is None else None

    def candidates(self, table: ScoreTable, scores: Tensor, most: int | None = None) -> list[float]:
        """
        Distinct oriented thresholds, never last; of `scores`, those observed, all or at `most` that many
        quantiles.
        """
        if self.published_for is not None:
            grid = ThresholdGrid(table.published_grids.get(self.published_for, OBSERVED))
            return grid.candidates(table, scores, most)
        if self.values:
            return sorted({math.inf if value is None else table.orient(value) for value in self.values})
        values = torch.unique(scores[torch.isfinite(scores)])
        quantiles = self.quantiles or most
        if quantiles is not None and len(values):
            # Observed values, not interpolated ones, so that rounding does not decide which samples pass.
            ranks = torch.linspace(0, len(values) - 1, quantiles, dtype=torch.float64).round().to(torch.int64)
            values = torch.unique(values[ranks])
        if table.strict and len(values):
            # A sample whose score equals the threshold does not exit: use the next number below each value.
            values = torch.nextafter(values, torch.full_like(values, -math.inf))
        return [*values.tolist(), math.inf]
