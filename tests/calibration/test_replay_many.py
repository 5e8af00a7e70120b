"""Many policies at once against each by itself."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from beem_plugin.calibration import replay as replaying
from beem_plugin.calibration.replay import outcome_of, replay, replay_many
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, NotCalibratedError
from beem_plugin.common.metrics import compute_metrics, count_metrics
from beem_plugin.exits.policies import ExitPolicy, MaxProbability, Patience, ThresholdPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from tests.exits.random_traces import random_trace

from .thresholds.tables import make_trace

SIXTEENTHS = [number / 16 for number in range(17)]


def assert_same(policies: list[ExitPolicy], trace: ExitTrace) -> None:
    found = dict(replay_many(policies, trace))
    assert sorted(found) == list(range(len(policies)))
    for index, policy in enumerate(policies):
        decisions = replay(policy, trace)
        expected = outcome_of(decisions.exits, decisions.predictions, trace.labels, trace.num_exits)
        assert found[index].exit_histogram == expected.exit_histogram, policy.to_config()
        for name in ("labels", "predictions", "counts"):
            assert np.array_equal(getattr(found[index], name), getattr(expected, name)), (policy.to_config(), name)


def build(configs: list[dict[str, Any]]) -> list[ExitPolicy]:
    return [ExitPolicy.from_params(config) for config in configs]


def settings(rng: random.Random, num_exits: int) -> list[dict[str, Any]]:
    """Settings of many rules, with thresholds that scores hit, one for all exits or one each."""

    def thresholds(scale: float = 1.0) -> Any:
        if rng.random() < 0.6:
            return rng.choice([*(scale * value for value in SIXTEENTHS), "never", rng.random()])
        return [rng.choice([*(scale * value for value in SIXTEENTHS), "never"]) for _ in range(num_exits - 1)]

    rules: list[dict[str, Any]] = [
        {"type": "max_probability"},
        {"type": "max_probability", "fallback": "most_confident"},
        {"type": "margin", "min_exit": min(2, num_exits)},
        {"type": "entropy", "normalized": True},
        {"type": "beem", "weights": {"type": "cost", "scale": 0.5}},
        {"type": "voting", "exponent": 0.5},
        {"type": "cascaded_ensemble"},
        {"type": "halting"},
        {"type": "gate"},
        {"type": "predicted_error"},
        {"type": "similarity"},
        {"type": "calibrated", "calibration": {"type": "temperature", "temperatures": [2.0] * num_exits}},
    ]
    configs = []
    for rule in rules:
        for _ in range(6):
            if rule["type"] == "calibrated":
                configs.append({**rule, "policy": {"type": "max_probability", "thresholds": thresholds()}})
            else:
                configs.append({**rule, "thresholds": thresholds(3 if rule["type"] in ("beem", "voting") else 1)})
    configs += [{"type": "patience", "patience": count} for count in range(1, num_exits + 3)]
    for output in ("last", "run_mean", "mean"):
        for patience in (1, 2, num_exits + 1):
            for limit in (0.0, 0.5, rng.random(), 1.5):
                config = {"patience": patience, "entropy_threshold": limit, "output": output}
                configs.append({"type": "confident_patience", **config})
    configs += [{"type": "fixed_exit", "exit": number + 1} for number in range(num_exits)] + [{"type": "final"}]
    rng.shuffle(configs)
    return configs


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("many_cells", [False, True])
def test_many_at_once_are_each_by_itself(seed: int, many_cells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if many_cells:
        monkeypatch.setattr(replaying, "MAX_CELLS", 0)
    rng = random.Random(seed)
    trace = random_trace(rng)
    assert_same(build(settings(rng, trace.num_exits)), trace)


def test_fitted_policies_of_one_score_are_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    calibration, trace = make_trace(100), make_trace(120, seed=1)
    policies = build([{"type": "expected_gain", "thresholds": value / 1000} for value in range(20)])
    prototype = ExitPolicy.from_params({"type": "expected_gain", "thresholds": 0.01})
    prototype.calibrate(calibration)
    for policy in policies:
        assert policy.shares_fit
        policy.adopt(prototype)
    by_itself = ExitPolicy.from_params({"type": "expected_gain", "thresholds": 0.007})
    by_itself.calibrate(calibration)
    assert by_itself.to_config() == policies[7].to_config()
    assert_same([*policies, by_itself], trace)
    scored = []
    monkeypatch.setattr(ThresholdPolicy, "scores", lambda self, trace: scored.append(1) or self.score_table(trace))
    list(replay_many(policies, trace))
    assert len(scored) == 1


def test_strategies_are_not_shared() -> None:
    assert not build([{"type": "beem", "thresholds": {"type": "budget", "speedup": 2}}])[0].shares_fit


class Hesitant(MaxProbability):
    """Decides in a way of its own: not known to leave at the first score that passes."""

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[torch.Tensor, ExitState]:
        leaves, state = super().step(exit_number, signals, state)
        return leaves & (signals.prediction == 0) if exit_number < self.num_exits else leaves, state


class Power(ThresholdPolicy):
    """Has a parameter that its author forgot to report."""

    def __init__(self, power: int, thresholds: Any = None) -> None:
        super().__init__(thresholds)
        self.power = power
        self.helper = lambda value: value**power if power > 2 else value

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=self.helper(signals.confidence))


class Run(Patience):
    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[torch.Tensor, ExitState]:
        leaves, state = super().step(exit_number, signals, state)
        return leaves & (signals.confidence > 0.7), state


class Root(ThresholdPolicy):
    def __init__(self, power: int, thresholds: Any = None) -> None:
        super().__init__(thresholds)
        self.power = power

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=signals.confidence**self.power)


def test_policies_of_users_are_replayed_as_they_are() -> None:
    trace = make_trace(100)
    policies: list[ExitPolicy] = []
    for limit in (0.6, 0.8):
        policies += [Hesitant(thresholds=limit), Power(1, limit), Power(3, limit), Root(1, limit), Root(4, limit)]
    policies += [Run(1), Run(2)]
    policies[0].bind(trace.exit_layers, trace.num_labels)
    assert policies[0].score_key() is None and policies[1].score_key() is None
    assert_same(policies, trace)


def test_what_cannot_be_replayed_is_refused_as_ever() -> None:
    trace = make_trace(20)
    with pytest.raises(NotCalibratedError):
        list(replay_many(build([{"type": "final"}, {"type": "beem"}]), trace))
    with pytest.raises(ConfigurationError, match="halt"):
        list(replay_many(build([{"type": "halting"}]), trace))


@pytest.mark.parametrize("metric", ["accuracy", "f1", "macro_f1", "matthews", "pearson_spearman"])
def test_metrics_of_counts_are_those_of_samples(metric: str) -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 50):
        labels, predictions = rng.integers(0, 2, size), rng.integers(0, 2, size)
        known = torch.from_numpy(labels)
        outcome = outcome_of(torch.ones(size, dtype=torch.int64), torch.from_numpy(predictions), known, 2)
        found = count_metrics(metric, outcome.labels, outcome.predictions, outcome.counts)
        assert found == pytest.approx(compute_metrics(metric, labels, predictions), abs=1e-12)


@pytest.mark.parametrize(
    "found, message",
    [
        (lambda signals, state: (signals.confidence, state), "a tensor float64 and ExitState"),
        (lambda signals, state: ((signals.confidence > 0)[:, None], state), "a tensor bool and ExitState"),
        (lambda signals, state: (True, state), "True and ExitState"),
        (lambda signals, state: (signals.confidence > 0, {}), "a tensor bool and dict"),
        (lambda signals, state: None, "None and NoneType"),
    ],
)
def test_a_step_of_another_form_is_named(found: Any, message: str) -> None:
    class Own(ExitPolicy):
        def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Any:
            return found(signals, state)

    with pytest.raises(ConfigurationError, match=f"exit policy .*Own: `step` returned {message}, allowed: "):
        replay(Own(), make_trace(5))
    with pytest.raises(ConfigurationError, match="found a class without `step`, which it needs"):
        replay(ExitPolicy(), make_trace(5))
