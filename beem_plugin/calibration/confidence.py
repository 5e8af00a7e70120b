"""Reliability of confidences, and their calibrations: none, temperature scaling, vector scaling."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, NotCalibratedError
from beem_plugin.common.metrics import known_labels
from beem_plugin.exits.confidence_calibration import ConfidenceCalibration
from beem_plugin.exits.fitting import RIDGE, fit_temperature, minimise, negative_log_likelihood
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

    def to_config(self) -> dict[str, Any]:
        return {"type": "none"}


@ConfidenceCalibration.register("temperature")
class TemperatureScaling(ConfidenceCalibration):
    """
    Divides all logits of an exit by one number T > 0 (Guo et al. 2017), which changes no label. T minimises the
    negative log-likelihood of the calibration labels.

    Registered as a `ConfidenceCalibration` with name "temperature".

    # Parameters

    temperatures : `list[float]`, optional (default = fitted)
        One per exit, the last included.
    """

    def __init__(self, temperatures: list[float] | None = None) -> None:
        if temperatures is not None and (not temperatures or min(temperatures) <= 0):
            raise ConfigurationError(f"calibration.temperatures: found {temperatures}, allowed: numbers above 0")
        self.temperatures = temperatures

    @property
    def is_fitted(self) -> bool:
        return self.temperatures is not None

    def fit(self, trace: Trace) -> None:
        logits, labels = labelled(trace)
        self.temperatures = [fit_temperature(logits[:, column], labels) for column in range(trace.num_exits)]

    def check_exits(self, num_exits: int, num_labels: int) -> None:
        if self.temperatures is not None and len(self.temperatures) != num_exits:
            raise ConfigurationError(
                f"calibration.temperatures: found a list of {len(self.temperatures)}, allowed: {num_exits} entries, "
                "one for every exit"
            )

    def transform(self, exit_number: int, logits: Tensor) -> Tensor:
        if self.temperatures is None:
            raise NotCalibratedError("temperature scaling has not been fitted yet")
        return logits.to(decision_dtype(logits.device)) / self.temperatures[exit_number - 1]

    def to_config(self) -> dict[str, Any]:
        return {"type": "temperature", "temperatures": self.temperatures}


@ConfidenceCalibration.register("vector")
class VectorScaling(ConfidenceCalibration):
    """
    Multiplies each logit of an exit by a number and adds another (Guo et al. 2017), which corrects an exit that favours
    a label, and can change the predicted label. Both minimise the negative log-likelihood of the calibration labels.

    Registered as a `ConfidenceCalibration` with name "vector".

    # Parameters

    scales, offsets : `list[list[float]]`, optional (default = fitted)
        `exits x labels`; both or neither.
    """

    def __init__(self, scales: list[list[float]] | None = None, offsets: list[list[float]] | None = None) -> None:
        if (scales is None) != (offsets is None):
            raise ConfigurationError("calibration: found only one of scales and offsets, allowed: both or neither")
        self.scales = scales
        self.offsets = offsets

    @property
    def is_fitted(self) -> bool:
        return self.scales is not None

    def fit(self, trace: Trace) -> None:
        logits, labels = labelled(trace)
        fitted = [fit_vector(logits[:, column], labels) for column in range(trace.num_exits)]
        self.scales, self.offsets = map(list, zip(*fitted, strict=True))

    def check_exits(self, num_exits: int, num_labels: int) -> None:
        for name, values in (("scales", self.scales), ("offsets", self.offsets)):
            if values is not None and [len(row) for row in values] != [num_labels] * num_exits:
                raise ConfigurationError(
                    f"calibration.{name}: found rows of {[len(row) for row in values]}, allowed: {num_exits} lists "
                    f"(one for every exit) of {num_labels} numbers"
                )

    def transform(self, exit_number: int, logits: Tensor) -> Tensor:
        if self.scales is None or self.offsets is None:
            raise NotCalibratedError("vector scaling has not been fitted yet")
        values = logits.to(decision_dtype(logits.device))
        return values * values.new_tensor(self.scales[exit_number - 1]) + values.new_tensor(
            self.offsets[exit_number - 1]
        )

    def to_config(self) -> dict[str, Any]:
        return {"type": "vector", "scales": self.scales, "offsets": self.offsets}


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
