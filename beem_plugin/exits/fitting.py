"""Maximum likelihood fits in numpy, and checks of fitted numbers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from beem_plugin.common.errors import ConfigurationError

LOG_TEMPERATURE_LIMIT = math.log(100)
RIDGE = 1.0
"""Weight of the penalty towards no change, equal to one sample: it matters only where the data carry no information."""

Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]  # parameters to the value and its gradient


def minimise(objective: Objective, start: np.ndarray, limits: list[tuple[float, float]], **options: Any) -> np.ndarray:
    """The minimum by L-BFGS within `limits`; scipy's `options`."""
    from scipy.optimize import minimize

    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=limits, options=options)
    return np.asarray(found.x)


def check_numbers(key: str, values: Any, shape: tuple[int, ...]) -> None:
    """Raises a `ConfigurationError` unless the (nested) lists hold finite numbers of this shape."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{key}: found no rectangle of numbers, allowed: {shape}") from None
    if found.shape != shape and (found.size or 0 not in shape):
        raise ConfigurationError(f"{key}: found numbers of shape {found.shape}, allowed: {shape}, as the network")
    if not np.isfinite(found).all():
        raise ConfigurationError(f"{key}: found a number that is not finite")


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def negative_log_likelihood(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean over samples, and its gradient with respect to the `(samples, labels)` logits."""
    rows = np.arange(len(labels))
    log_probabilities = log_softmax(logits)
    gradient = np.exp(log_probabilities)
    gradient[rows, labels] -= 1
    return float(-log_probabilities[rows, labels].mean()), gradient / len(labels)


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """
    The T, found in log T, with the smallest negative log-likelihood of `(samples,)` labels under softmax(logits /
    T); the ridge keeps the T of an exit without errors above 0.
    """

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        inverse = math.exp(-float(parameters[0]))
        loss, gradient = negative_log_likelihood(logits * inverse, labels)
        slope = -float((gradient * logits).sum()) * inverse
        weight = RIDGE / len(labels)
        return loss + weight * float(parameters[0]) ** 2 / 2, np.array([slope + weight * float(parameters[0])])

    limits = [(-LOG_TEMPERATURE_LIMIT, LOG_TEMPERATURE_LIMIT)]
    return math.exp(float(minimise(objective, np.zeros(1), limits)[0]))
