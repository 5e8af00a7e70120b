"""Makes the confidences of the exits mean what they say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, NotCalibratedError
from beem_plugin.common.registry import Registrable
from beem_plugin.exits.signals import ExitSignals, decision_dtype

LOG_TEMPERATURE_LIMIT = math.log(100)
SCALE_LIMIT = 100.0
RIDGE = 1.0
"""Weight of the pull towards no change, as if it were one sample: it only matters where the data say nothing."""


class ConfidenceCalibration(Registrable):
    """
    A transformation of each exit's logits, fitted on calibration data so that an exit that says 90 % is right 9 times
    in 10. The policy `calibrated` puts one before any other policy.
    """

    @property
    def is_fitted(self) -> bool:
        return True

    def fit(self, trace: ExitTrace) -> None:
        """Fits every exit on the labelled samples of `trace`."""

    def transform(self, exit_number: int, logits: Tensor) -> Tensor:
        """`(batch, labels)` logits of exit `exit_number` (1-based), calibrated, in the decision precision."""
        raise TypeError(f"{type(self).__name__} does not define transform")

    def check_exits(self, num_exits: int, num_labels: int) -> None:
        """Raises a `ConfigurationError` if fitted numbers are for another network."""

    def to_config(self) -> dict[str, Any]:
        """The calibration as a config with its fitted numbers."""
        raise TypeError(f"{type(self).__name__} does not define to_config")

    def apply(self, trace: ExitTrace) -> ExitTrace:
        """`trace` with all logits calibrated, in float64."""
        columns = [
            self.transform(number, trace.logits[:, number - 1]).double() for number in range(1, trace.num_exits + 1)
        ]
        return replace(trace, logits=torch.stack(columns, 1))


@ConfidenceCalibration.register("none")
class NoCalibration(ConfidenceCalibration):
    """
    The logits as they are.

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
        One an exit, the last included.
    """

    def __init__(self, temperatures: list[float] | None = None) -> None:
        if temperatures is not None and (not temperatures or min(temperatures) <= 0):
            raise ConfigurationError(f"calibration.temperatures: found {temperatures}, allowed: numbers above 0")
        self.temperatures = temperatures

    @property
    def is_fitted(self) -> bool:
        return self.temperatures is not None

    def fit(self, trace: ExitTrace) -> None:
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
    a label, and can change the label it gives. Both minimise the negative log-likelihood of the calibration labels.

    Registered as a `ConfidenceCalibration` with name "vector".

    # Parameters

    scales : `list[list[float]]`, optional (default = fitted)
        `exits x labels`
    offsets : `list[list[float]]`, optional (default = fitted)
        `exits x labels`
    """

    def __init__(self, scales: list[list[float]] | None = None, offsets: list[list[float]] | None = None) -> None:
        if (scales is None) != (offsets is None):
            raise ConfigurationError("calibration: found only one of scales and offsets, allowed: both or neither")
        self.scales = scales
        self.offsets = offsets
        self._tensors: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}

    @property
    def is_fitted(self) -> bool:
        return self.scales is not None

    def fit(self, trace: ExitTrace) -> None:
        logits, labels = labelled(trace)
        fitted = [fit_vector(logits[:, column], labels) for column in range(trace.num_exits)]
        self.scales = [scale for scale, _ in fitted]
        self.offsets = [offset for _, offset in fitted]
        self._tensors = {}

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
        key = (exit_number, logits.device)
        if key not in self._tensors:
            # Kept on the device: making them anew at every exit would copy from the host each time.
            dtype = decision_dtype(logits.device)
            self._tensors[key] = (
                torch.tensor(self.scales[exit_number - 1], dtype=dtype, device=logits.device),
                torch.tensor(self.offsets[exit_number - 1], dtype=dtype, device=logits.device),
            )
        scale, offset = self._tensors[key]
        return logits.to(scale.dtype) * scale + offset

    def to_config(self) -> dict[str, Any]:
        return {"type": "vector", "scales": self.scales, "offsets": self.offsets}


def as_calibration(calibration: ConfidenceCalibration | str | None) -> ConfidenceCalibration:
    """A name as that calibration with its defaults, nothing as temperature scaling."""
    if isinstance(calibration, ConfidenceCalibration):
        return calibration
    return ConfidenceCalibration.from_params({"type": calibration or "temperature"})


def calibrate_signals(calibration: ConfidenceCalibration, exit_number: int, signals: ExitSignals) -> ExitSignals:
    """What the exit says, with its logits calibrated; further signals are left alone."""
    return ExitSignals(calibration.transform(exit_number, signals.logits), signals.extra)


def labelled(trace: ExitTrace) -> tuple[np.ndarray, np.ndarray]:
    """The logits, in float64, and labels of the samples that have one."""
    known = trace.labels >= 0
    if not bool(known.any()):
        raise ConfigurationError(
            f"confidence calibration needs labelled calibration data: found no label for {len(trace)} samples"
        )
    return trace.logits[known].double().numpy(), trace.labels[known].numpy()


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """
    The T that minimises the mean negative log-likelihood of `(samples,)` labels under softmax(logits / T), found in
    log T. An exit that makes no error would have T = 0: a pull towards T = 1 with the weight of one sample, and limits
    of 1/100 and 100, keep it finite.
    """

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        inverse = math.exp(-float(parameters[0]))
        loss, gradient = negative_log_likelihood(logits * inverse, labels)
        slope = -float((gradient * logits).sum()) * inverse
        weight = RIDGE / len(labels)
        return loss + weight * float(parameters[0]) ** 2 / 2, np.array([slope + weight * float(parameters[0])])

    limits = [(-LOG_TEMPERATURE_LIMIT, LOG_TEMPERATURE_LIMIT)]
    return math.exp(float(_minimise(objective, np.zeros(1), limits)[0]))


def fit_vector(logits: np.ndarray, labels: np.ndarray) -> tuple[list[float], list[float]]:
    """Scale and offset of each label, as `fit_temperature`, with the pull towards scale 1 and offset 0."""
    num_labels = logits.shape[1]
    neutral = np.concatenate([np.ones(num_labels), np.zeros(num_labels)])

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        scale, offset = parameters[:num_labels], parameters[num_labels:]
        loss, gradient = negative_log_likelihood(logits * scale + offset, labels)
        slope = np.concatenate([(gradient * logits).sum(0), gradient.sum(0)])
        weight = RIDGE / len(labels)
        away = parameters - neutral
        return loss + weight * float(away @ away) / 2, slope + weight * away

    limits = [(-SCALE_LIMIT, SCALE_LIMIT)] * (2 * num_labels)
    found = _minimise(objective, neutral, limits)
    return found[:num_labels].tolist(), found[num_labels:].tolist()


def negative_log_likelihood(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean over samples, and its gradient with respect to the logits."""
    from scipy.special import log_softmax

    rows = np.arange(len(labels))
    log_probabilities = log_softmax(logits, axis=1)
    gradient = np.exp(log_probabilities)
    gradient[rows, labels] -= 1
    return float(-log_probabilities[rows, labels].mean()), gradient / len(labels)


def _minimise(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray, limits: list[tuple[float, float]]
) -> np.ndarray:
    from scipy.optimize import minimize

    return np.asarray(minimize(objective, start, jac=True, method="L-BFGS-B", bounds=limits).x)
