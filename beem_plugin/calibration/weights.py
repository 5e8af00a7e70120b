"""Weights of the exits in BEEM's score that are fitted on data."""

from __future__ import annotations

import torch

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.exits.exit_weights import CostWeights, ExitWeights, FixedWeights
from beem_plugin.exits.trace_interface import Trace, require_labels

__all__ = ["AccuracyWeights", "CostWeights", "ExitWeights", "FixedWeights"]

VARIANTS = ("plain", "balanced", "above_chance")


@ExitWeights.register("accuracy")
class AccuracyWeights(ExitWeights):
    """
    BEEM-A: w_i is exit i's accuracy on all calibration samples, independent of thresholds.

    Registered as an `ExitWeights` with name "accuracy".

    # Parameters

    variant : `str`, optional (default = `"plain"`)
        `"plain"` accuracy as in the paper; `"balanced"`, the mean recall of the labels, which gives a collapsed exit
        1/labels; `"above_chance"`, (balanced - 1/labels) / (1 - 1/labels), at least 0.
    """

    needs_calibration = True

    def __init__(self, variant: str = "plain") -> None:
        if variant not in VARIANTS:
            raise ConfigurationError(not_allowed("weights.variant", variant, VARIANTS))
        self.variant = variant

    def fit(self, trace: Trace) -> list[float]:
        require_labels(trace, 'weights of type "accuracy"')
        right = (trace.predictions == trace.labels.unsqueeze(1)).double()
        if self.variant == "plain":
            return right.mean(0).tolist()
        recalls = torch.stack([right[trace.labels == label].mean(0) for label in trace.labels.unique()])
        balanced = recalls.mean(0)
        if self.variant == "balanced":
            return balanced.tolist()
        chance = 1 / trace.num_labels
        return ((balanced - chance) / (1 - chance)).clamp_min(0).tolist()
