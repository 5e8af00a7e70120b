"""What the policy `expected_gain` learns from a trace: how exits vote together, and what is left to gain after each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from beem_plugin.calibration.confidence import fit_temperature
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError

LOG_FLOOR = math.log(1e-4)
"""No log-probability counts for less: a saturated exit must not outvote all others for ever."""
SCALE_LIMIT = 100.0
BIAS_RIDGE = 0.1
INTERCEPT_RIDGE = 1e-3
PSEUDO_CHANGES = 0.5


@dataclass
class ExpertModel:
    """
    Plain numbers, for each exit but the last.

    # Parameters

    memory : `list[float]`
        m_i, how much the vote of the earlier exits counts.
    trust : `list[float]`
        t_i, how much the exit's own opinion counts.
    bias : `list[list[float]]`
        b_i, for each label.
    change : `list[list[float]]`
        The weights of the log-odds of the vote's label under the vote, this exit and the one before, in the log-odds of
        a change.
    change_bias : `list[list[float]]`
        d_i, for each label of the vote.
    gain : `list[float]`
        g_i, the accuracy that a layer buys those whose label changes.
    """

    memory: list[float]
    trust: list[float]
    bias: list[list[float]]
    change: list[list[float]]
    change_bias: list[list[float]]
    gain: list[float]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ExpertModel:
        expected = list(cls.__dataclass_fields__)
        if sorted(config) != sorted(expected):
            raise ConfigurationError(f"model: found the keys {sorted(config)}, allowed: exactly {sorted(expected)}")
        return cls(**{key: _plain(config[key]) for key in expected})

    def to_config(self) -> dict[str, Any]:
        return asdict(self)

    def check(self, num_exits: int, num_labels: int) -> None:
        """Raises a `ConfigurationError` unless there are finite numbers for this many exits and labels."""
        shapes: dict[str, tuple[int, ...]] = {
            "memory": (num_exits - 1,),
            "trust": (num_exits - 1,),
            "bias": (num_exits - 1, num_labels),
            "change": (num_exits - 1, 3),
            "change_bias": (num_exits - 1, num_labels),
            "gain": (num_exits - 1,),
        }
        for key, shape in shapes.items():
            try:
                found = np.asarray(getattr(self, key), dtype=np.float64)
            except (TypeError, ValueError):
                raise ConfigurationError(f"model.{key}: found no rectangle of numbers, allowed: {shape}") from None
            if num_exits > 1 and found.shape != shape:
                raise ConfigurationError(
                    f"model.{key}: found numbers of shape {found.shape}, allowed: {shape}, "
                    f"for a network of {num_exits} exits and {num_labels} labels"
                )
            if not np.isfinite(found).all():
                raise ConfigurationError(f"model.{key}: found a number that is not finite")


def fit_experts(trace: ExitTrace, ridge: float, label_share: float) -> ExpertModel:
    """
    Fits everything, exit after exit; deterministic.

    # Parameters

    trace : `ExitTrace`
        Labels are used where known, and not needed.
    ridge : `float`
        The pull of all weights towards 0, those of standardised features.
    label_share : `float`
        From 0 to 1: how much the labels count beside the calibrated last exit as the judge of who is right.
    """
    if len(trace) == 0:
        raise ConfigurationError("expected_gain: found no calibration sample, needed: at least one")
    opinions = clipped_log_probabilities(trace.logits.double().numpy())  # (samples, exits, labels)
    judge = judge_of(trace, label_share)
    votes = np.empty_like(opinions)
    votes[:, -1] = opinions[:, -1]
    memory, trust, bias = [], [], []
    for column in range(trace.num_exits - 1):
        heard = opinions[:, [column]] if column == 0 else np.stack([votes[:, column - 1], opinions[:, column]], 1)
        weights, offsets = fit_vote(heard, judge, ridge)
        votes[:, column] = clipped_log_probabilities(np.einsum("k,nkc->nc", weights, heard) + offsets)
        memory.append(0.0 if column == 0 else float(weights[0]))
        trust.append(float(weights[-1]))
        bias.append(offsets.tolist())
    given = votes.argmax(-1)  # (samples, exits)
    changes = given[:, :-1] != given[:, -1:]
    change, change_bias = [], []
    for column in range(trace.num_exits - 1):
        voices = (votes[:, column], opinions[:, column], opinions[:, max(column - 1, 0)])
        evidence = np.stack([log_odds(voice, given[:, column]) for voice in voices], 1)
        weights, offsets = fit_change(evidence, given[:, column], changes[:, column], trace.num_labels, ridge)
        change.append(weights.tolist())
        change_bias.append(offsets.tolist())
    right = np.take_along_axis(judge, given, 1).mean(0)
    gain = gains(right, changes.mean(0), trace.exit_layers, len(trace))
    return ExpertModel(memory, trust, bias, change, change_bias, gain)


def judge_of(trace: ExitTrace, label_share: float) -> np.ndarray:
    """`(samples, labels)` how likely each label is right: the last exit, calibrated, mixed with the known labels."""
    logits, labels = trace.logits[:, -1].double().numpy(), trace.labels.numpy()
    known = labels >= 0
    temperature = fit_temperature(logits[known], labels[known]) if known.any() else 1.0
    judge = np.exp(log_softmax(logits / temperature))
    judge[known] *= 1 - label_share
    judge[known, labels[known]] += label_share
    return judge


def fit_vote(heard: np.ndarray, judge: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """
    The weights, none negative, and the offsets that bring the weighted sum of log-probabilities closest to the judge,
    in cross-entropy.

    # Parameters

    heard : `ndarray`
        `(samples, voices, labels)`
    judge : `ndarray`
        `(samples, labels)`
    """
    from scipy.optimize import minimize

    samples, voices, num_labels = heard.shape
    centred = heard - heard.mean(axis=2, keepdims=True)
    centred = centred - centred.mean(axis=0, keepdims=True)
    spread = np.square(centred).sum(axis=2).mean(axis=0)  # (voices,)
    pull = np.concatenate([ridge * spread, np.full(num_labels, BIAS_RIDGE)])

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        logits = log_softmax(np.einsum("k,nkc->nc", parameters[:voices], heard) + parameters[voices:])
        slope = np.exp(logits) - judge
        gradient = np.concatenate([np.einsum("nc,nkc->k", slope, heard), slope.sum(0)])
        loss = -float((judge * logits).sum()) + float(pull @ np.square(parameters)) / 2
        return loss / samples, (gradient + pull * parameters) / samples

    start = np.concatenate([np.zeros(voices - 1), np.ones(1), np.zeros(num_labels)])
    limits = [(0.0, SCALE_LIMIT)] * voices + [(-SCALE_LIMIT, SCALE_LIMIT)] * num_labels
    options = {"maxiter": 200, "ftol": 1e-12, "gtol": 1e-8}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=limits, options=options).x
    return found[:voices], found[voices:]


def fit_change(
    evidence: np.ndarray, given: np.ndarray, changes: np.ndarray, num_labels: int, ridge: float
) -> tuple[np.ndarray, np.ndarray]:
    """
    Logistic regression of `changes` on standardised `(samples, features)` evidence and the label given, by Newton's
    method; returned for the evidence as it is, with the offset of every label.
    """
    mean, spread = evidence.mean(0), evidence.std(0)
    spread = np.where(spread > 1e-6, spread, 1.0)
    labels = np.eye(num_labels)[given]
    features = np.concatenate([(evidence - mean) / spread, labels, np.ones((len(evidence), 1))], axis=1)
    pull = np.full(features.shape[1], ridge)
    pull[-1] = INTERCEPT_RIDGE
    weights = np.zeros(features.shape[1])

    def objective(weights: np.ndarray) -> float:
        scores = features @ weights
        return float(np.logaddexp(0, scores).sum() - scores[changes].sum() + pull @ np.square(weights) / 2)

    for _ in range(100):
        chance = sigmoid(features @ weights)
        gradient = features.T @ (chance - changes) + pull * weights
        curvature = (features * (chance * (1 - chance))[:, None]).T @ features + np.diag(pull)
        step = np.linalg.solve(curvature, gradient)
        size, value = 1.0, objective(weights)
        while size > 1e-4 and objective(weights - size * step) > value:
            size /= 2
        weights = weights - size * step
        if np.abs(step).max() < 1e-9:
            break
    slopes = weights[: evidence.shape[1]] / spread
    return slopes, weights[evidence.shape[1] : -1] + weights[-1] - float(slopes @ mean)


def gains(right: np.ndarray, changed: np.ndarray, exit_layers: Sequence[int], samples: int) -> list[float]:
    """
    g_i: the most accuracy a layer that waiting for any later exit buys, for each sample whose label changes. Counted as
    if half a sample more had been seen that changes its label and is right at the end, so that a rate is never 0 / 0.

    # Parameters

    right : `ndarray`
        `(exits,)` the share of samples that are right at each exit.
    changed : `ndarray`
        `(exits - 1,)` the share of samples that have another label at the end.
    """
    found = []
    for i in range(len(right) - 1):
        ahead = np.array([layer - exit_layers[i] for layer in exit_layers[i + 1 :]])
        best = max(float(((right[i + 1 :] - right[i]) / ahead).max()), 0.0)
        found.append((samples * best + PSEUDO_CHANGES / ahead[-1]) / (samples * changed[i] + PSEUDO_CHANGES))
    return [float(value) for value in found]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def clipped_log_probabilities(logits: np.ndarray) -> np.ndarray:
    return np.maximum(log_softmax(logits), LOG_FLOOR)


def log_odds(log_probabilities: np.ndarray, label: np.ndarray) -> np.ndarray:
    """`(samples,)` the log-probability of `label` over that of all other labels together, from clipped ones."""
    own = np.take_along_axis(log_probabilities, label[:, None], 1)[:, 0]
    others = log_probabilities.copy()
    np.put_along_axis(others, label[:, None], -math.inf, 1)
    top = others.max(axis=1)
    return np.asarray(own - top - np.log(np.exp(others - top[:, None]).sum(axis=1)))


def sigmoid(scores: np.ndarray) -> np.ndarray:
    from scipy.special import expit

    return np.asarray(expit(scores))


def _plain(value: Any) -> Any:
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
