"""The risk of an early exit, as a loss between 0 and 1."""

from __future__ import annotations

import numpy as np

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.exits.score_table import ScoreTable

RISKS = ("accuracy_loss", "disagreement", "error")


class Risk:
    """
    The mean loss of the samples under given thresholds.

    # Parameters

    name : `str`
        `"accuracy_loss"`: wrong at the sample's exit minus wrong at the last exit. `"disagreement"`: another label than
        the last exit's; needs no labels. `"error"`: a wrong label.
    clip : `bool`, optional (default = `True`)
        Only for `"accuracy_loss"`: a sample that only the early exit gets right counts 0 instead of -1. The clipped
        risk is 0/1 and at least as large as the loss of accuracy, so a bound on it bounds both. Unclipped, these
        samples compensate for others, but the loss ranges over [-1, 1] and its bounds are wider.
    """

    def __init__(self, name: str, clip: bool = True) -> None:
        if name not in RISKS:
            raise ConfigurationError(not_allowed("thresholds.risk", name, RISKS))
        if not clip and name != "accuracy_loss":
            raise ConfigurationError(
                'thresholds.clip: false only goes with risk "accuracy_loss"; others are never negative'
            )
        self.name = name
        self.clip = clip

    @property
    def is_binary(self) -> bool:
        """Whether every loss is 0 or 1."""
        return self.clip

    @property
    def needs_labels(self) -> bool:
        return self.name != "disagreement"

    @property
    def never_is_safe(self) -> bool:
        """Whether full depth has risk 0 by definition."""
        return self.name != "error"

    def per_exit(self, table: ScoreTable) -> np.ndarray:
        """`(samples, exits)` float64: the risk of each sample if it exits there, in [-1, 1]."""
        if self.name == "disagreement":
            return table.disagrees.double().numpy()
        wrong = table.wrong.double().numpy()
        if self.name == "error":
            return wrong
        difference = wrong - wrong[:, -1:]
        return difference.clip(min=0) if self.clip else difference

    def scaled(self, risk: np.ndarray) -> np.ndarray:
        """A risk on the [0, 1] scale of the tests."""
        return risk if self.is_binary else (risk + 1) / 2

    def unscaled(self, risk: float) -> float:
        return risk if self.is_binary else 2 * risk - 1
