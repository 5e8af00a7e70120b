"""The candidate thresholds of a strategy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import parse_grid

OBSERVED = "observed"
"""The grid of all scores of the calibration data."""


class ThresholdGrid:
    """
    Candidate thresholds: numbers in the policy's own unit and `"never"`; or `"observed"`, every score observed on the
    calibration data; or an integer k, k quantiles of these scores.
    """

    def __init__(self, grid: Sequence[object] | str | int) -> None:
        if isinstance(grid, bool) or (isinstance(grid, int) and grid < 1):
            raise ConfigurationError(f"thresholds.grid: found {grid}, allowed: 1 quantile or more")
        if isinstance(grid, str) and grid != OBSERVED:
            raise ConfigurationError(f'thresholds.grid: found {grid!r}, allowed: a list, a number, or "{OBSERVED}"')
        self.quantiles = grid if isinstance(grid, int) else None
        self.observed = isinstance(grid, str)
        self.values = [] if isinstance(grid, (int, str)) else parse_grid(grid, "thresholds.grid")

    @classmethod
    def default(cls, strategy: str, table: ScoreTable) -> ThresholdGrid:
        """The grid of the policy's own paper for this strategy, else the observed scores."""
        return cls(table.published_grids.get(strategy, OBSERVED))

    def candidates(self, table: ScoreTable, scores: Tensor) -> list[float]:
        """Distinct oriented thresholds from the most permissive to never; `scores` are the oriented scores observed."""
        if self.values:
            return sorted({math.inf if value is None else table.orient(value) for value in self.values})
        values = torch.unique(scores[torch.isfinite(scores)])
        if self.quantiles is not None and len(values):
            # Observed values, not interpolated ones, so that rounding does not decide which samples pass.
            ranks = torch.linspace(0, len(values) - 1, self.quantiles, dtype=torch.float64).round().to(torch.int64)
            values = torch.unique(values[ranks])
        if table.strict and len(values):
            # A sample whose score equals the threshold does not exit: use the next number below each value.
            values = torch.nextafter(values, torch.full_like(values, -math.inf))
        return [*values.tolist(), math.inf]
