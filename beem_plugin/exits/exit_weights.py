"""Weights of the exits in BEEM's score."""

from collections.abc import Sequence

import torch

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.common.registry import Registrable, made
from beem_plugin.exits.trace_interface import Trace, require_labels


class ExitWeights(Registrable):
    """The weights w_1..w_L of BEEM's score, from 0: an exit cannot count against its own label."""

    needs_calibration = False

    def resolve(self, exit_layers: Sequence[int]) -> list[float]:
        """The weights of exits at these layers, if no data are needed."""
        raise TypeError(f"{type(self).__name__} does not define resolve")

    def fit(self, trace: Trace) -> list[float]:
        """The weights from calibration data; by default those of `resolve`."""
        return self.resolve(trace.exit_layers)


@ExitWeights.register("cost")
class CostWeights(ExitWeights):
    """
    BEEM-C: w_i = scale * (i + offset), with i the layer that the exit reads: a deeper exit costs more and counts more.

    Registered as an `ExitWeights` with name "cost".

    # Parameters

    scale : `float`, optional (default = `0.1`)
        The paper's lambda (its Fig. 1 has slope 0.1).
    offset : `int`, optional (default = `0`)
        The released ALBERT code counts layers from 0: scale 0.4, offset -1.
    """

    def __init__(self, scale: float = 0.1, offset: int = 0) -> None:
        check_number("weights.scale", scale)
        self.scale = scale
        self.offset = offset

    def resolve(self, exit_layers: Sequence[int]) -> list[float]:
        weights = [self.scale * (layer + self.offset) for layer in exit_layers]
        if min(weights, default=0) < 0:
            raise ConfigurationError(
                f"weights.offset: found {self.offset}, with which the exit at layer {exit_layers[0]} has the negative "
                f"weight {min(weights):g}, allowed: {-exit_layers[0]} or more"
            )
        return weights


@ExitWeights.register("fixed")
class FixedWeights(ExitWeights):
    """
    Weights given in the config. A bare list means this.

    Registered as an `ExitWeights` with name "fixed".

    # Parameters

    values : `list[float]`
        Finite numbers from 0, one per exit, the last included.
    """

    def __init__(self, values: list) -> None:
        for index, value in enumerate(values):
            check_number(f"weights.{index}", value)
        self.values = [float(value) for value in values]

    def resolve(self, exit_layers: Sequence[int]) -> list[float]:
        if len(self.values) != len(exit_layers):
            raise ConfigurationError(
                f"weights: found a list of {len(self.values)}, allowed: {len(exit_layers)} entries, one for every exit"
            )
        return list(self.values)


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
        check_choice("weights.variant", variant, ("plain", "balanced", "above_chance"))
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


def as_weights(weights: ExitWeights | str | list | None) -> ExitWeights:
    """A bare list as `fixed`, a name as those weights with their defaults, `None` as BEEM-A."""
    return FixedWeights(weights) if isinstance(weights, list) else made(ExitWeights, weights, "accuracy")
