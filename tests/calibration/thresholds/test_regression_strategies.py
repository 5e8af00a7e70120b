"""Thresholds of a regression: what is kept low, what counts as an error, and which strategies are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.comparison.calibrate import calibration_evidence
from beem_plugin.exits.policies import ExitPolicy
from beem_plugin.rendering.pages.calibration import calibration_page

EXITS = 4


def some_trace(samples: int = 120, seed: int = 0, unknown: int = 0) -> ExitTrace:
    """Deeper exits are nearer to the label, and the predicted error tells something of how near."""
    generator = torch.Generator().manual_seed(seed)
    labels = 5 * torch.rand(samples, generator=generator)
    noise = torch.randn(samples, EXITS, generator=generator) * torch.tensor([1.5, 1.0, 0.6, 0.4])
    guess = (noise.abs() + 0.3 * torch.randn(samples, EXITS, generator=generator)).tanh().clamp(0.01, 0.99)
    given = labels.clone()
    given[:unknown] = math.nan
    return ExitTrace((labels[:, None] + noise)[:, :, None], given, signals={"predicted_error": guess})


def policy_with(thresholds: Any) -> ExitPolicy:
    return ExitPolicy.from_params(Params({"type": "predicted_error", "thresholds": thresholds}))


def squared_error_at(trace: ExitTrace, threshold: float, target: torch.Tensor) -> tuple[float, float]:
    """Mean squared distance from `target` and speed-up under one threshold, sample by sample."""
    total, layers = 0.0, 0
    for row in range(len(trace)):
        guesses = trace.signals["predicted_error"][row].double().tolist()
        number = next((n for n in range(1, EXITS) if guesses[n - 1] < threshold), EXITS)
        total += (float(trace.logits[row, number - 1, 0]) - float(target[row])) ** 2
        layers += number
    return total / len(trace), EXITS * len(trace) / layers


@pytest.mark.parametrize("unknown", [0, 5])
def test_budget_takes_the_least_squared_error_within_it(unknown: int) -> None:
    trace = some_trace(unknown=unknown)
    report = policy_with({"type": "budget", "speedup": 1.6}).calibrate(trace)
    # Without all labels the last exit's values stand for them.
    target = trace.logits[:, -1, 0] if unknown else trace.labels
    seen = sorted(trace.signals["predicted_error"][:, :-1].double().unique().tolist())
    tried = [squared_error_at(trace, value + 1e-9, target) for value in [0.0, *seen]]
    best = min(error for error, speed in tried if speed >= 1.6 - 1e-9)
    assert report.details["calibration_loss"] == pytest.approx(best, abs=1e-6)
    assert report.layer_speedup >= 1.6 - 1e-9
    assert any("no label" in warning for warning in report.warnings) == bool(unknown)


def test_the_report_tells_squared_errors_in_the_place_of_error_rates() -> None:
    trace = some_trace()
    policy = policy_with([0.9, 0.5, 0.4])
    report = policy.calibrate(trace)
    exits = replay(policy, trace).exits
    squared = (trace.logits[:, :, 0].double() - trace.labels.double()[:, None]).numpy() ** 2
    left = squared[np.arange(len(trace)), exits.numpy() - 1]
    assert report.error is None and report.final_error is None
    assert report.details["mean_squared_error"] == pytest.approx(left.mean())
    assert report.details["final_mean_squared_error"] == pytest.approx(squared[:, -1].mean())
    first = report.details["squared_errors"][0]
    assert first["left"] == pytest.approx(left[exits.numpy() == 1].mean())
    assert first["last_exit"] == pytest.approx(squared[exits.numpy() == 1, -1].mean())
    assert [entry.samples for entry in report.evidence] == report.exit_histogram
    assert {entry.errors for entry in report.evidence} == {None}
    assert any("mean squared error" in warning for warning in report.warnings)
    page = calibration_page(calibration_evidence(policy, report, trace))
    assert "pearson" in page and "values, which are not right or wrong" in page


def test_best_on_validation_takes_the_highest_correlation() -> None:
    trace = some_trace()
    report = policy_with({"type": "best_on_validation", "grid": [0.3, 0.6, 0.9]}).calibrate(trace)
    shown = report.details["candidates"]
    assert [entry["threshold"] for entry in shown] == [0.9, 0.6, 0.3]
    for entry in shown:
        found = replay(policy_with(entry["threshold"]), trace).predictions.numpy()
        pearson = np.corrcoef(trace.labels.double().numpy(), found)[0, 1]
        ranks = [np.argsort(np.argsort(values)) for values in (trace.labels.numpy(), found)]
        assert entry["pearson_spearman"] == pytest.approx((pearson + np.corrcoef(*ranks)[0, 1]) / 2, abs=1e-6)
    assert report.thresholds == [max(shown, key=lambda entry: entry["pearson_spearman"])["threshold"]] * (EXITS - 1)


@pytest.mark.parametrize("name", ["error_rate", "risk_controlled"])
def test_strategies_that_count_errors_are_refused_before_anything_is_trained(name: str) -> None:
    policy = policy_with(name)
    with pytest.raises(ConfigurationError, match="counts errors.*best_on_validation, budget, fixed, joint; or a `tol"):
        policy.bind([1, 2, 3], 1)
    policy_with({"type": name, "tolerance": 0.5}).bind([1, 2, 3], 1)
    with pytest.raises(ConfigurationError, match="tolerance: found 0.5 for 2 labels"):
        policy_with({"type": name, "tolerance": 0.5}).bind([1, 2, 3], 2)
    with pytest.raises(ConfigurationError, match="tolerance: found -1"):
        policy_with({"type": name, "tolerance": -1})


def test_a_metric_of_labels_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="thresholds.metric: found 'accuracy', allowed: pearson_spearman"):
        policy_with({"type": "best_on_validation", "metric": "accuracy"}).bind([1, 2, 3], 1)


def test_error_rate_counts_what_is_off_by_more_than_the_tolerance() -> None:
    # Four samples; exit 1 is off by 0.5, 0.2, 1 and 0, exit 2 (the last) by 0.2, 0, 0.5 and 0.6.
    off = torch.tensor([[0.5, 0.2], [0.2, 0.0], [1.0, 0.5], [0.0, 0.6]])
    guess = torch.tensor([[0.3, 0.0], [0.2, 0.0], [0.4, 0.0], [0.1, 0.0]])
    trace = ExitTrace((1 + off)[:, :, None], torch.ones(4), signals={"predicted_error": guess})
    fit = {"type": "error_rate", "tolerance": 0.5, "min_support": 1}
    report = policy_with(fit).calibrate(trace)
    # The last exit errs on one of four; up to a quarter may err at exit 1: all four leave, of which one is wrong.
    assert report.details["final_error"] == 0.25
    assert report.exit_histogram == [4, 0]
    assert policy_with({**fit, "error": 0.0}).calibrate(trace).exit_histogram == [3, 1]
    assert policy_with({**fit, "error": 0.0, "tolerance": 0.4}).calibrate(trace).exit_histogram == [2, 2]


@pytest.mark.parametrize("risk", ["disagreement", "error", "accuracy_loss"])
def test_risk_is_that_of_values_beyond_the_tolerance(risk: str) -> None:
    trace = some_trace(samples=400)
    fit = {"type": "risk_controlled", "risk": risk, "tolerance": 1.0, "epsilon": 0.15}
    policy = policy_with(fit)
    report = policy.calibrate(trace)
    found = replay(policy, trace).predictions
    last, labels = trace.logits[:, -1, 0].double(), trace.labels.double()
    wrong, final_wrong = (found - labels).abs() > 1, (last - labels).abs() > 1
    losses = {"disagreement": (found - last).abs() > 1, "error": wrong, "accuracy_loss": wrong & ~final_wrong}
    assert report.details["empirical_risk"] == pytest.approx(float(losses[risk].double().mean()))
    assert report.details["risk_upper_bound"] <= 0.15 + 1e-9
    assert report.layer_speedup > 1.05


def test_joint_thresholds_meet_a_speed() -> None:
    trace = some_trace(samples=300)
    report = policy_with({"type": "joint", "speedup": 1.5, "levels": [8], "shrinkage": [0.0]}).calibrate(trace)
    assert report.layer_speedup >= 1.5 - 1e-9
    assert report.details["calibration_loss"] == pytest.approx(report.details["mean_squared_error"], rel=1e-6)
