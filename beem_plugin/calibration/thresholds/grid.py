"""Which thresholds a strategy tries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from beem_plugin.calibration.thresholds.strategy import OBSERVED, ScoreTable, oriented_grid, parse_grid
from beem_plugin.common.errors import ConfigurationError


class ThresholdGrid:
    """
    Candidate thresholds: a list in the rule's own units, or taken from the scores that the calibration data show.

    # Parameters

    grid : `Sequence` or `str` or `int`
        Numbers and `"never"`; or `"observed"`, every score seen; or an integer k, k quantiles of the scores seen.
    """

    def __init__(self, grid: Sequence[object] | str | int) -> None:
        if isinstance(grid, bool) or (isinstance(grid, int) and grid < 1):
            raise ConfigurationError(f"thresholds.grid: found {grid}, allowed: 1 quantile or more")
        if isinstance(grid, str) and grid != OBSERVED:
            raise ConfigurationError(f'thresholds.grid: found {grid!r}, allowed: a list, a number, or "{OBSERVED}"')
        self.quantiles = grid if isinstance(grid, int) else None
        self.observed = isinstance(grid, str)
        self.values: list[float | None] = []
        if not isinstance(grid, (int, str)):
            self.values = parse_grid(grid, "thresholds.grid")

    @classmethod
    def default(cls, strategy: str, table: ScoreTable) -> ThresholdGrid:
        """The grid that the rule's own paper gives for this strategy, else the observed scores."""
        return cls(table.published_grids.get(strategy, OBSERVED))

    def candidates(self, table: ScoreTable, scores: Tensor) -> list[float]:
        """Oriented thresholds from the most permissive to never, where `scores` are the oriented scores seen."""
        if self.values:
            return oriented_grid(self.values, table)
        values = torch.unique(scores[torch.isfinite(scores)])
        if self.quantiles is not None and len(values):
            # Observed values, not interpolated ones: which samples pass must not hang on rounding.
            ranks = torch.linspace(0, len(values) - 1, self.quantiles, dtype=torch.float64).round().to(torch.int64)
            values = torch.unique(values[ranks])
        if table.strict and len(values):
            # A strict rule keeps the sample whose score is the threshold: step just below each value.
            values = torch.nextafter(values, torch.full_like(values, -math.inf))
        return [*values.tolist(), math.inf]
