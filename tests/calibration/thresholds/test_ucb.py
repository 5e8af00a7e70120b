"""The bandit's threshold against one that looks at a sample at a time, as on a stream."""

from __future__ import annotations

import math

import pytest
import torch

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.thresholds import UpperConfidenceBound
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policies import Entropy, MaxProbability


def trace_of(samples: int, seed: int = 0) -> ExitTrace:
    """Four exits that grow more confident; no labels."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, 2, (samples,), generator=generator)
    strength = torch.arange(1, 5).view(1, 4, 1) * torch.nn.functional.one_hot(truth, 2).view(-1, 1, 2)
    logits = strength + 0.7 * torch.randn(samples, 4, 2, generator=generator)
    return ExitTrace(logits, torch.full((samples,), -1))


def on_a_stream(trace: ExitTrace, arms: list[float], mu: float, exploration: float) -> tuple[float, list[int]]:
    confidences = trace.logits.double().softmax(-1).amax(-1).tolist()
    plays, totals = [0] * len(arms), [0.0] * len(arms)
    for step, row in enumerate(confidences):
        bounds = [
            totals[k] / plays[k] + exploration * math.sqrt(math.log(step) / plays[k]) if step >= len(arms) else 0.0
            for k in range(len(arms))
        ]
        arm = step if step < len(arms) else bounds.index(max(bounds))
        seen: list[float] = []
        for confidence in row:  # layer by layer, until the sample exits
            seen.append(confidence)
            if confidence >= arms[arm]:
                break
        plays[arm] += 1
        totals[arm] += max(seen) - seen[0] - mu * len(seen) / len(row)
    most = max(plays)
    return max((totals[k] / plays[k], arms[k]) for k in range(len(arms)) if plays[k] == most)[1], plays


@pytest.mark.parametrize(("mu", "exploration"), [(0.1, 1.0), (0.4, 0.2), (0.0, 0.5)])
def test_the_threshold_and_plays_are_those_of_a_stream(mu: float, exploration: float) -> None:
    trace, grid = trace_of(500), [0.6, 0.75, 0.9, 0.97]
    policy = MaxProbability(UpperConfidenceBound(grid=grid, mu=mu, exploration=exploration))
    report = policy.calibrate(trace)
    expected, plays = on_a_stream(trace, grid, mu, exploration)
    assert report.details["plays"] == plays and sum(plays) == 500
    assert policy.to_config()["thresholds"] == [expected] * 3
    assert report.details["regret"] >= 0


def test_a_higher_price_of_depth_exits_sooner_and_the_grid_bounds_it() -> None:
    trace = trace_of(2000)
    speeds = []
    for mu in (0.0, 0.3, 2.0):
        policy = Entropy(UpperConfidenceBound(mu=mu, exploration=0.1))
        policy.calibrate(trace)
        speeds.append(float(4 / replay(policy, trace).exits.double().mean()))
        scores = policy.score_table(trace).scores[:, :-1]
        assert min(policy.limits()) >= float(scores.min()) - 1e-9 or math.inf in policy.limits()
    assert speeds == sorted(speeds) and speeds[-1] > 3.5 and speeds[0] < 2


def test_few_samples_and_wrong_numbers() -> None:
    policy = MaxProbability(UpperConfidenceBound())
    assert any("20 samples for 11 candidates are few" in text for text in policy.calibrate(trace_of(20)).warnings)
    with pytest.raises(ConfigurationError, match="thresholds.mu: found -1"):
        UpperConfidenceBound(mu=-1)
