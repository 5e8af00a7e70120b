"""Thresholds given in the config."""

from __future__ import annotations

import math

from beem_plugin.calibration.thresholds.strategy import (
    ScoreTable,
    ThresholdFit,
    ThresholdStrategy,
    parse_grid,
    parse_threshold,
)
from beem_plugin.common.errors import ConfigurationError


@ThresholdStrategy.register("fixed")
class FixedThresholds(ThresholdStrategy):
    """
    Thresholds that are given, not fitted. A bare number or list in a config means this.

    Registered as a `ThresholdStrategy` with name "fixed".

    # Parameters

    values : `float` or `list` or `str`
        One number for all exits, or a list with one entry for every exit but the last; `"never"` is allowed. In the
        rule's own units.
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
        """One threshold an exit but the last, in the rule's own units; `None` for never."""
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
