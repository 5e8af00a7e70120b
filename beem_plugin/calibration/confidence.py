"""Reliability of confidences, and their calibrations: none, temperature scaling, vector scaling."""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, NotCalibratedError
from beem_plugin.common.metrics import known_labels
from beem_plugin.common.registry import registered_name
from beem_plugin.exits.confidence_calibration import ConfidenceCalibration
from beem_plugin.exits.fitting import RIDGE, check_numbers, fit_temperature, minimise, negative_log_likelihood
from beem_plugin.exits.signals import decision_dtype
from beem_plugin.exits.trace_interface import Trace

SCALE_LIMIT = 100.0
DEFAULT_BINS = 15


def reliability(confidence: Tensor, right: Tensor, bins: int = DEFAULT_BINS) -> list[dict[str, Any]]:
    """
    Of each bin of equal width its bounds `low` and `high` (included), `samples`, mean `confidence` and `accuracy`, the
    last two `None` without samples. `confidence` is `(samples,)` in [0, 1], `right` `(samples,)` bool.
    """
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    member = torch.bucketize(confidence.double(), edges[1:-1])
    counts = torch.bincount(member, minlength=bins)
    mean = torch.bincount(member, weights=confidence.double(), minlength=bins) / counts
    accuracy = torch.bincount(member, weights=right.double(), minlength=bins) / counts
    names = ("low", "high", "samples", "confidence", "accuracy")
    rows = zip(*(values.tolist() for values in (edges[:-1], edges[1:], counts, mean, accuracy)), strict=True)
    return [dict(zip(names, row if row[2] else (*row[:3], None, None), strict=True)) for row in rows]


def expected_calibration_error(confidence: Tensor, right: Tensor, bins: int = DEFAULT_BINS) -> float:
    """The mean of |confidence - accuracy| over bins, weighted by samples (Guo et al. 2017, Eq. 3); 0 without any."""
    filled = [entry for entry in reliability(confidence, right, bins) if entry["samples"]]
    total = sum(entry["samples"] * abs(entry["confidence"] - entry["accuracy"]) for entry in filled)
    return float(total / max(len(confidence), 1))


@ConfidenceCalibration.register("none")
class NoCalibration(ConfidenceCalibration):
    """
    The logits unchanged.

    Registered as a `ConfidenceCalibration` with name "none".
    """

    def transform(self, exit_number: int, logits: Tensor) -> Tensor:
        return logits.to(decision_dtype(logits.device))


class Scaling(ConfidenceCalibration):
    """Scales the logits by numbers of each exit, which are fitted on the labelled samples."""

    per_label: ClassVar[bool] = False  # whether an exit has one number a label

    def fit_exit(self, logits: np.ndarray, labels: np.ndarray) -> tuple[Any, ...]:
        """The numbers of an exit, in the order of `fitted`."""
        raise TypeError(f"{type(self).__name__} does not define fit_exit")

    def scaled(self, logits: Tensor, *numbers: Any) -> Tensor:
        """`(batch, labels)` logits in the decision precision, by an exit's numbers."""
        raise TypeError(f"{type(self).__name__} does not define scaled")

    def fit(self, trace: Trace) -> None:
        logits, labels = labelled(trace)
        exits = [self.fit_exit(logits[:, column], labels) for column in range(trace.num_exits)]
        for name, numbers in zip(self.fitted, zip(*exits, strict=True), strict=True):
            setattr(self, name, list(numbers))

    def check_exits(self, num_exits: int, num_labels: int) -> None:
        shape = (num_exits, num_labels) if self.per_label else (num_exits,)
        for name in self.fitted if self.is_fitted else ():
            check_numbers(f"calibration.{name}", getattr(self, name), shape)

    def transform(self, exit_number: int, logits: Tensor) -> Tensor:
        if not self.is_fitted:
            raise NotCalibratedError(f"{registered_name(ConfidenceCalibration, self)} scaling has not been fitted yet")
        numbers = (getattr(self, name)[exit_number - 1] for name in self.fitted)
        return self.scaled(logits.to(decision_dtype(logits.device)), *numbers)


@ConfidenceCalibration.register("temperature")
class TemperatureScaling(Scaling):
    """
    Divides all logits of an exit by one number T > 0 (Guo et al. 2017), which changes no label. T minimises the
    negative log-likelihood of the calibration labels.

    Registered as a `ConfidenceCalibration` with name "temperature".

    # Parameters

    temperatures : `list[float]`, optional (default = fitted)
        One per exit, the last included.
    """

    fitted: ClassVar[tuple[str, ...]] = ("temperatures",)

    def __init__(self, temperatures: list[float] | None = None) -> None:
        if temperatures is not None and (not temperatures or min(temperatures) <= 0):
            raise ConfigurationError(f"calibration.temperatures: found {temperatures}, allowed: numbers above 0")
        self.temperatures = temperatures

    def fit_exit(self, logits: np.ndarray, labels: np.ndarray) -> tuple[Any, ...]:
        return (fit_temperature(logits, labels),)

    def scaled(self, logits: Tensor, *numbers: Any) -> Tensor:
        return logits / numbers[0]


@ConfidenceCalibration.register("vector")
class VectorScaling(Scaling):
    """
    Multiplies each logit of an exit by a number and adds another (Guo et al. 2017), which corrects an exit that favours
    a label, and can change the predicted label. Both minimise the negative log-likelihood of the calibration labels.

    Registered as a `ConfidenceCalibration` with name "vector".

    # Parameters

    scales, offsets : `list[list[float]]`, optional (default = fitted)
        `exits x labels`; both or neither.
    """

    fitted: ClassVar[tuple[str, ...]] = ("scales", "offsets")
    per_label: ClassVar[bool] = True

    def __init__(self, scales: list[list[float]] | None = None, offsets: list[list[float]] | None = None) -> None:
        if (scales is None) != (offsets is None):
            raise ConfigurationError("calibration: found only one of scales and offsets, allowed: both or neither")
        self.scales = scales
        self.offsets = offsets

    def fit_exit(self, logits: np.ndarray, labels: np.ndarray) -> tuple[Any, ...]:
        return fit_vector(logits, labels)

    def scaled(self, logits: Tensor, *numbers: Any) -> Tensor:
        scale, offset = map(logits.new_tensor, numbers)
        return logits * scale + offset


def labelled(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """The logits, in float64, and labels of the samples with a known label."""
    known = known_labels(trace.labels)
    if not bool(known.any()):
        raise ConfigurationError(
            f"confidence calibration needs labelled calibration data: found no label for {len(trace)} samples"
        )
    return trace.logits[known].double().numpy(), trace.labels[known].numpy()


def fit_vector(logits: np.ndarray, labels: np.ndarray) -> tuple[list[float], list[float]]:
    """Scale and offset of each label, as `fit_temperature`, with the penalty towards scale 1 and offset 0."""
    num_labels = logits.shape[1]
    neutral = np.repeat([1.0, 0.0], num_labels)

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        scale, offset = parameters[:num_labels], parameters[num_labels:]
        loss, gradient = negative_log_likelihood(logits * scale + offset, labels)
        slope = np.concatenate([(gradient * logits).sum(0), gradient.sum(0)])
        weight = RIDGE / len(labels)
        change = parameters - neutral
        return loss + weight * float(change @ change) / 2, slope + weight * change

    found = minimise(objective, neutral, [(-SCALE_LIMIT, SCALE_LIMIT)] * (2 * num_labels))
    return found[:num_labels].tolist(), found[num_labels:].tolist()
