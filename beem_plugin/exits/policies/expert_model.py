"""The fitted numbers of the policy `expected_gain`: the combined vote, and the expected gain after each exit."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.metrics import known_labels
from beem_plugin.common.registry import FromParams
from beem_plugin.exits.fitting import check_numbers, fit_temperature, log_softmax, minimise
from beem_plugin.exits.trace_interface import Trace

LOG_FLOOR = math.log(1e-4)
"""Smaller log-probabilities are clipped, so that a saturated exit does not dominate the vote at all later exits."""
SCALE_LIMIT = 100.0
BIAS_RIDGE = 0.1
INTERCEPT_RIDGE = 1e-3
PSEUDO_CHANGES = 0.5


@dataclass
class ExpertModel(FromParams):
    """Numbers for each exit but the last."""

    memory: list[float]  # m_i, the weight of the earlier exits' vote
    trust: list[float]  # t_i, the weight of the exit's own distribution
    bias: list[list[float]]  # b_i, for each label
    change: list[list[float]]  # weights of the log-odds under the vote, this exit and the one before
    change_bias: list[list[float]]  # d_i, for each label of the vote
    gain: list[float]  # g_i, the accuracy gained per layer by samples whose label changes

    def to_config(self) -> dict[str, Any]:
        return asdict(self)

    def check(self, num_exits: int, num_labels: int) -> None:
        widths = {"bias": [num_labels], "change": [3], "change_bias": [num_labels]}
        for key in self.__dataclass_fields__:
            check_numbers(f"model.{key}", getattr(self, key), (num_exits - 1, *widths.get(key, [])))


def fit_experts(trace: Trace, ridge: float, label_share: float) -> ExpertModel:
    """Fits all numbers, exit after exit, as `ExpectedGain` describes. Labels are used where known; none is required."""
    if len(trace) == 0:
        raise ConfigurationError("expected_gain: found no calibration sample, needed: at least one")
    distributions = clipped_log_probabilities(trace.logits.double().numpy())  # (samples, exits, labels)
    target = target_of(trace, label_share)
    votes = np.empty_like(distributions)
    votes[:, -1] = distributions[:, -1]
    memory, trust, bias = [], [], []
    for column in range(trace.num_exits - 1):
        inputs = (
            distributions[:, [column]] if column == 0 else np.stack([votes[:, column - 1], distributions[:, column]], 1)
        )
        weights, offsets = fit_vote(inputs, target, ridge)
        votes[:, column] = clipped_log_probabilities(np.einsum("k,nkc->nc", weights, inputs) + offsets)
        memory.append(0.0 if column == 0 else float(weights[0]))
        trust.append(float(weights[-1]))
        bias.append(offsets.tolist())
    given = votes.argmax(-1)  # (samples, exits)
    changes = given[:, :-1] != given[:, -1:]
    change, change_bias = [], []
    for column in range(trace.num_exits - 1):
        experts = (votes[:, column], distributions[:, column], distributions[:, max(column - 1, 0)])
        label = torch.from_numpy(given[:, [column]])
        evidence = np.stack([log_odds(torch.from_numpy(expert), label).numpy() for expert in experts], 1)
        weights, offsets = fit_change(evidence, given[:, column], changes[:, column], trace.num_labels, ridge)
        change.append(weights.tolist())
        change_bias.append(offsets.tolist())
    right = np.take_along_axis(target, given, 1).mean(0)
    gain = gains(right, changes.mean(0), trace.exit_costs, len(trace))
    return ExpertModel(memory, trust, bias, change, change_bias, gain)


def target_of(trace: Trace, label_share: float) -> np.ndarray:
    """`(samples, labels)` the target distribution: the last exit, calibrated, mixed with the known labels."""
    logits, labels = trace.logits[:, -1].double().numpy(), trace.labels.numpy()
    known = known_labels(trace.labels).numpy()
    temperature = fit_temperature(logits[known], labels[known]) if known.any() else 1.0
    target = np.exp(log_softmax(logits / temperature))
    target[known] *= 1 - label_share
    target[known, labels[known]] += label_share
    return target


def fit_vote(inputs: np.ndarray, target: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights from 0 and offsets of `(samples, experts, labels)` log-probabilities, by cross-entropy to the target."""
    samples, experts, num_labels = inputs.shape
    centred = inputs - inputs.mean(axis=2, keepdims=True)
    centred = centred - centred.mean(axis=0, keepdims=True)
    spread = np.square(centred).sum(axis=2).mean(axis=0)  # (experts,)
    penalty = np.concatenate([ridge * spread, np.full(num_labels, BIAS_RIDGE)])

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        logits = log_softmax(np.einsum("k,nkc->nc", parameters[:experts], inputs) + parameters[experts:])
        slope = np.exp(logits) - target
        gradient = np.concatenate([np.einsum("nc,nkc->k", slope, inputs), slope.sum(0)])
        loss = -float((target * logits).sum()) + float(penalty @ np.square(parameters)) / 2
        return loss / samples, (gradient + penalty * parameters) / samples

    start = np.concatenate([np.zeros(experts - 1), np.ones(1), np.zeros(num_labels)])
    limits = [(0.0, SCALE_LIMIT)] * experts + [(-SCALE_LIMIT, SCALE_LIMIT)] * num_labels
    found = minimise(objective, start, limits, maxiter=200, ftol=1e-12, gtol=1e-8)
    return found[:experts], found[experts:]


def fit_change(
    evidence: np.ndarray, given: np.ndarray, changes: np.ndarray, num_labels: int, ridge: float
) -> tuple[np.ndarray, np.ndarray]:
    """Logistic regression of `changes` on `(samples, features)` evidence and the label given, by Newton's method."""
    from scipy.special import expit

    mean, spread = evidence.mean(0), evidence.std(0)
    spread = np.where(spread > 1e-6, spread, 1.0)
    labels = np.eye(num_labels)[given]
    features = np.concatenate([(evidence - mean) / spread, labels, np.ones((len(evidence), 1))], axis=1)
    penalty = np.full(features.shape[1], ridge)
    penalty[-1] = INTERCEPT_RIDGE
    weights = np.zeros(features.shape[1])

    def objective(weights: np.ndarray) -> float:
        scores = features @ weights
        return float(np.logaddexp(0, scores).sum() - scores[changes].sum() + penalty @ np.square(weights) / 2)

    for _ in range(100):
        chance = expit(features @ weights)
        gradient = features.T @ (chance - changes) + penalty * weights
        curvature = (features * (chance * (1 - chance))[:, None]).T @ features + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        size, value = 1.0, objective(weights)
        while size > 1e-4 and objective(weights - size * step) > value:
            size /= 2
        weights = weights - size * step
        if np.abs(step).max() < 1e-9:
            break
    slopes = weights[: evidence.shape[1]] / spread
    return slopes, weights[evidence.shape[1] : -1] + weights[-1] - float(slopes @ mean)


def gains(right: np.ndarray, changed: np.ndarray, costs: Sequence[float], samples: int) -> list[float]:
    """
    g_i, from the shares of right samples and of those whose label changes later, and the costs in layers; half a
    sample that changes and is right at the end is added, so that no rate is 0 / 0.
    """
    found = []
    for i in range(len(right) - 1):
        ahead = np.array(costs[i + 1 :]) - costs[i]
        best = max(float(((right[i + 1 :] - right[i]) / ahead).max()), 0.0)
        found.append((samples * best + PSEUDO_CHANGES / ahead[-1]) / (samples * changed[i] + PSEUDO_CHANGES))
    return [float(value) for value in found]


def clipped_log_probabilities(logits: np.ndarray) -> np.ndarray:
    return np.maximum(log_softmax(logits), LOG_FLOOR)


def log_odds(log_probabilities: Tensor, label: Tensor) -> Tensor:
    """`(batch,)` the log-probability of `label`, `(batch, 1)`, over that of all other labels together."""
    others = log_probabilities.scatter(1, label, -math.inf).logsumexp(-1)
    return log_probabilities.gather(1, label).squeeze(1) - others
