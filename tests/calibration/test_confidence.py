"""Temperatures and vectors against other optimisers; policies on calibrated confidences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from beem_plugin.calibration.confidence import (
    TemperatureScaling,
    VectorScaling,
    expected_calibration_error,
    fit_temperature,
    fit_vector,
    negative_log_likelihood,
    reliability,
)
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, NotCalibratedError
from beem_plugin.exits.policies import ExitPolicy

from .thresholds.tables import make_trace


def test_temperature_against_a_line_search() -> None:
    trace = make_trace(2000)
    for column in range(trace.num_exits):
        logits, labels = trace.logits[:, column].double().numpy(), trace.labels.numpy()
        found = minimize_scalar(
            lambda log_t, x=logits, y=labels: negative_log_likelihood(x / math.exp(log_t), y)[0],
            bounds=(-3, 3),
            method="bounded",
        )
        assert fit_temperature(logits, labels) == pytest.approx(math.exp(found.x), rel=5e-3)


def test_a_known_temperature_is_found_again() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(20000, 3)) * 2
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (shares.cumsum(1) > generator.random((20000, 1))).argmax(1)
    assert fit_temperature(3 * logits, labels) == pytest.approx(3, rel=0.05)
    scale, offset = fit_vector(logits / np.array([1.0, 2.0, 4.0]) + np.array([0.5, 0.0, -0.5]), labels)
    assert np.allclose(scale, [1, 2, 4], atol=0.25)
    assert np.allclose(np.array(offset) - offset[1], [-0.5, 0, 2.0], atol=0.25)


@pytest.mark.parametrize("kind", ["temperature", "vector"])
@pytest.mark.parametrize("case", ["one sample", "one class", "never wrong", "constant logits", "huge logits"])
def test_awkward_data_stay_finite(kind: str, case: str) -> None:
    trace = make_trace(1 if case == "one sample" else 50)
    logits, labels = trace.logits.clone(), trace.labels.clone()
    if case == "one class":
        labels[:] = 1
    elif case == "never wrong":
        logits = torch.nn.functional.one_hot(labels, 2)[:, None].float().repeat(1, trace.num_exits, 1) * 8
    elif case == "constant logits":
        logits[:] = 1.0
    elif case == "huge logits":
        logits *= 1e4
    policy = ExitPolicy.from_params(
        {"type": "calibrated", "policy": {"type": "max_probability", "thresholds": 0.9}, "calibration": kind}
    )
    report = policy.calibrate(ExitTrace(logits, labels))
    numbers = torch.tensor(report.policy["calibration"].get("temperatures") or report.policy["calibration"]["scales"])
    assert bool(torch.isfinite(numbers).all())
    assert max(report.details["confidence_calibration"]["ece_after"]) <= 1


def test_expected_calibration_error_by_hand() -> None:
    confidence = torch.tensor([0.95, 0.92, 0.55, 0.6, 1.0]).double()
    right = torch.tensor([True, False, True, True, True])
    # Ten bins: (0.5, 0.6] holds 0.55, 0.6; (0.9, 1.0] holds 0.95, 0.92, 1.0.
    expected = 2 / 5 * abs(0.575 - 1.0) + 3 / 5 * abs((0.95 + 0.92 + 1.0) / 3 - 2 / 3)
    assert expected_calibration_error(confidence, right, bins=10) == pytest.approx(expected)
    assert sum(entry["samples"] for entry in reliability(confidence, right, 10)) == 5
    # The upper bound of a bin belongs to it.
    halves = reliability(torch.tensor([0.0, 0.5, 0.75, 1.0]), torch.tensor([False, True, True, False]), 2)
    assert [(entry["samples"], entry["confidence"], entry["accuracy"]) for entry in halves] == [
        (2, 0.25, 0.5),
        (2, 0.875, 0.5),
    ]
    assert expected_calibration_error(confidence[:0], right[:0]) == 0.0


@pytest.mark.parametrize("inner", ["max_probability", "entropy", "beem"])
@pytest.mark.parametrize("kind", ["temperature", "vector", "none"])
def test_policy_on_calibrated_confidences(inner: str, kind: str) -> None:
    trace, other = make_trace(1500), make_trace(500, seed=9)
    config: dict[str, Any] = {
        "type": "calibrated",
        "policy": {"type": inner, "thresholds": {"type": "budget", "speedup": 1.6}},
        "calibration": {"type": kind},
    }
    policy = ExitPolicy.from_params(config)
    assert not policy.is_calibrated
    report = policy.calibrate(trace)
    decisions = replay(policy, other)
    assert torch.equal(replay(ExitPolicy.from_params(report.policy), other).exits, decisions.exits)
    # By hand: the inner policy on logits transformed beforehand.
    applied = policy.calibration.apply(other)  # type: ignore[attr-defined]
    plain = ExitPolicy.from_params(report.policy["policy"])
    by_hand = replay(plain, applied)
    assert torch.equal(by_hand.exits, decisions.exits)
    assert torch.equal(by_hand.log_probabilities, decisions.log_probabilities)
    assert report.layer_speedup == pytest.approx(1.6, abs=0.1)


def test_temperature_lowers_the_calibration_error_and_keeps_the_labels() -> None:
    trace = make_trace(3000)
    trace.logits *= 4
    policy = ExitPolicy.from_params({"type": "calibrated", "policy": {"type": "max_probability", "thresholds": 0.9}})
    details = policy.calibrate(trace).details["confidence_calibration"]
    assert all(after < before / 2 for before, after in zip(details["ece_before"], details["ece_after"], strict=True))
    applied = policy.calibration.apply(trace)  # type: ignore[attr-defined]
    assert torch.equal(applied.logits.argmax(-1), trace.logits.argmax(-1))


def test_batches_are_decided_as_single_samples_are() -> None:
    trace = make_trace(40)
    policy = ExitPolicy.from_params(
        {"type": "calibrated", "policy": {"type": "beem", "thresholds": 1.0}, "calibration": "vector"}
    )
    policy.calibrate(trace)
    together = replay(policy, trace).exits
    alone = torch.cat([replay(policy, trace.select([row])).exits for row in range(len(trace))])
    assert torch.equal(together, alone)


def test_errors_say_what_is_wrong() -> None:
    trace = make_trace(10)
    unlabelled = ExitTrace(trace.logits, torch.full((10,), -1))
    policy = ExitPolicy.from_params({"type": "calibrated", "policy": {"type": "max_probability", "thresholds": 0.9}})
    with pytest.raises(NotCalibratedError):
        replay(policy, trace)
    with pytest.raises(ConfigurationError, match="labelled"):
        policy.calibrate(unlabelled)
    with pytest.raises(ConfigurationError, match=r"shape \(2,\), allowed: \(6,\)"):
        TemperatureScaling([1.0, 2.0]).check_exits(6, 2)
    with pytest.raises(ConfigurationError, match="above 0"):
        TemperatureScaling([0.0])
    with pytest.raises(ConfigurationError, match="both or neither"):
        VectorScaling(scales=[[1.0]])


def test_only_labelled_samples_count_in_calibration_errors() -> None:
    trace = make_trace(60)
    labels = torch.cat([trace.labels, torch.full((40,), -1)])
    more = ExitTrace(torch.cat([trace.logits, make_trace(40, seed=1).logits]), labels)
    assert more.calibration_errors() == trace.calibration_errors()


def test_the_score_is_fitted_on_calibrated_logits_of_its_own_data() -> None:
    trace, other = make_trace(300), make_trace(300, seed=3)
    other.logits[:, :2, 0] += 2  # the first exits favour a label
    policy = ExitPolicy.from_params({"type": "calibrated", "policy": "beem", "calibration": "vector"})
    report = policy.calibrate(other, trace)
    applied = policy.calibration.apply(trace)  # type: ignore[attr-defined]
    expected = (applied.predictions == trace.labels.unsqueeze(1)).double().mean(0)
    plain = (trace.predictions == trace.labels.unsqueeze(1)).double().mean(0)
    assert report.weights == pytest.approx(expected.tolist()) and report.weights != pytest.approx(plain.tolist())
