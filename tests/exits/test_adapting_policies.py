"""Policies that learn while predicting, against a simulation of the stream that looks at one sample at a time."""

from __future__ import annotations

import copy
import logging
import math
import pickle
from typing import Any

import pytest
import torch

import beem_plugin.components  # noqa: F401  registers everything
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policies.adapting import AdaptingPolicy
from beem_plugin.exits.policy import ExitPolicy

LAYERS = [2, 4, 6, 8]
GRID = [0.6, 0.75, 0.9, 0.97]


def trace_of(samples: int, seed: int = 0, strength: float = 1.0) -> ExitTrace:
    """Four exits that grow more confident; no labels."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, 2, (samples,), generator=generator)
    signal = strength * torch.arange(1, 5).view(1, 4, 1) * torch.nn.functional.one_hot(truth, 2).view(-1, 1, 2)
    logits = signal + 0.7 * torch.randn(samples, 4, 2, generator=generator)
    return ExitTrace(logits, torch.full((samples,), -1), meta={"exit_layers": LAYERS})


def policy_of(config: dict[str, Any]) -> AdaptingPolicy:
    policy = ExitPolicy.from_params(config)
    policy.bind(LAYERS, 2)
    assert isinstance(policy, AdaptingPolicy)
    return policy


def online(**options: Any) -> AdaptingPolicy:
    return policy_of({"type": "online", "policy": {"type": "max_probability"}, "grid": GRID, **options})


def split(**options: Any) -> AdaptingPolicy:
    return policy_of({"type": "split", "policy": {"type": "max_probability", "thresholds": 0.85}, **options})


def on_a_stream(
    trace: ExitTrace, leave: Any, reward: Any, arms: int, exploration: float
) -> tuple[list[int], list[int]]:
    """The exits, and how often each arm was played. `leave` of arm, exit, confidence; `reward` of arm, exit, ditto."""
    plays, totals, exits = [0] * arms, [0.0] * arms, []
    for step, row in enumerate(trace.logits.double().softmax(-1).amax(-1).tolist()):
        arm = step
        if step >= arms:
            bounds = [totals[k] / plays[k] + exploration * math.sqrt(math.log(step) / plays[k]) for k in range(arms)]
            arm = bounds.index(max(bounds))
        number = next((k for k in (1, 2, 3) if leave(arm, k, row[k - 1])), 4)
        plays[arm] += 1
        totals[arm] += reward(arm, number, row[number - 1])
        exits.append(number)
    return exits, plays


@pytest.mark.parametrize(("mu", "exploration"), [(0.1, 1.0), (0.6, 0.2)])
def test_online_thresholds_are_those_of_a_stream(mu: float, exploration: float) -> None:
    trace, policy = trace_of(400), online(mu=mu, exploration=exploration)
    exits, plays = on_a_stream(
        trace,
        lambda arm, number, confidence: confidence >= GRID[arm],
        lambda arm, number, confidence: confidence - mu * LAYERS[number - 1] / 8,
        len(GRID),
        exploration,
    )
    assert replay(policy, trace).exits.tolist() == exits
    assert policy.replayed.plays.tolist() == plays and min(plays) > 0


@pytest.mark.parametrize(("mu", "offload"), [(1.2, 1.0), (0.4, 5.0), (0.4, 0.0)])
def test_a_split_is_that_of_a_stream(mu: float, offload: float) -> None:
    trace, policy = trace_of(400, seed=1), split(mu=mu, offload=offload, exploration=0.3)

    def reward(arm: int, number: int, confidence: float) -> float:
        edge = LAYERS[arm]
        return confidence - mu * (edge + (offload if number > arm + 1 else 0)) / 8

    exits, plays = on_a_stream(
        trace, lambda arm, number, confidence: number == arm + 1 and confidence >= 0.85, reward, 4, 0.3
    )
    assert replay(policy, trace).exits.tolist() == exits
    assert policy.replayed.plays.tolist() == plays


def test_dear_sending_keeps_samples_on_the_edge_and_dear_layers_send_them() -> None:
    trace = trace_of(3000, seed=2)
    chosen = []
    for mu, offload in ((2.0, 0.0), (0.3, 40.0)):
        policy = split(exploration=0.1, mu=mu, offload=offload)
        replay(policy, trace)
        chosen.append(policy.names()[policy.replayed.best])
    assert chosen == [2, 8]


def test_thresholds_follow_the_data() -> None:
    """Where layers gain no confidence, samples exit sooner than where they do."""
    depth = {}
    for strength in (0.05, 1.0):
        policy = online(grid=[0.5, 0.99], mu=0.2, exploration=0.1)
        depth[strength] = float(replay(policy, trace_of(2000, strength=strength)).exits.double().mean())
    assert depth[0.05] < 1.5 < 2.5 < depth[1.0]


def test_the_candidates_come_from_calibration_data_and_are_stored() -> None:
    policy = policy_of({"type": "online", "policy": {"type": "entropy"}, "grid": 5})
    assert not policy.is_calibrated
    report = policy.calibrate(trace_of(300))
    assert sum(report.details["plays"]) == 300 and len(report.details["arms"]) == 6
    assert policy.bandit.plays.sum() == 0  # predictions start over
    loaded = policy_of(policy.to_config())
    assert loaded.to_config() == policy.to_config() == report.policy
    other = trace_of(200, seed=5)
    assert replay(loaded, other).exits.tolist() == replay(policy, other).exits.tolist()
    assert replay(policy, other).exits.tolist() == replay(policy, other).exits.tolist()  # a replay starts over, too


def test_a_split_takes_fitted_thresholds_and_goes_inside_calibrated_confidences() -> None:
    trace = trace_of(300)
    labelled = ExitTrace(trace.logits, trace.logits[:, 3].argmax(-1), meta=trace.meta)
    inner = {"type": "max_probability", "thresholds": {"type": "budget", "speedup": 1.5}}
    policy = ExitPolicy.from_params({"type": "calibrated", "policy": {"type": "split", "policy": inner}})
    policy.calibrate(labelled)
    assert policy.adapts
    found = replay(policy, labelled)
    assert len(set(found.exits.tolist())) > 1 and policy.summary().startswith("split: after 0 samples")
    policy.observe(found.exits[:5], found.log_probabilities[:5])
    assert policy.summary().startswith("split: after 5 samples the best is 2 (mean reward x samples: 2 ")


def test_a_line_is_logged_each_time_the_samples_have_doubled(caplog: pytest.LogCaptureFixture) -> None:
    policy = online()
    with caplog.at_level(logging.INFO):
        for _ in range(9):
            policy.observe(torch.tensor([1]), torch.tensor([[0.9, 0.1]]).log())
    counts = [line.split("after ")[1].split()[0] for line in caplog.messages]
    assert counts == ["1", "2", "4", "8"]


def test_a_copy_learns_with_the_original_and_a_stored_one_starts_over() -> None:
    policy = online()
    before, shared = pickle.dumps(vars(policy)), copy.deepcopy(policy)
    shared.observe(torch.tensor([1, 2]), torch.tensor([[0.9, 0.1], [0.8, 0.2]]).log())
    assert policy.bandit.plays.tolist() == [2, 0, 0, 0] and policy.bandit.arm == 1
    assert policy.bandit.totals[0] == pytest.approx(0.9 - 0.1 * 2 / 8 + 0.8 - 0.1 * 4 / 8)
    assert pickle.dumps(vars(policy)) == before and pickle.loads(pickle.dumps(policy)).bandit.plays.sum() == 0
    policy.bind(LAYERS, 2)  # as before every run
    assert policy.bandit.plays.sum() == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "online", "policy": {"type": "patience", "patience": 2}}, "policy: found patience, allowed: one"),
        ({"type": "online", "policy": "max_probability", "mu": -1}, "mu: found -1.0, allowed: 0 or more"),
        ({"type": "split", "policy": "max_probability", "offload": -2}, "offload: found -2"),
    ],
)
def test_wrong_settings(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ExitPolicy.from_params(config)


def test_no_sample_exits_before_min_exit_and_no_network_is_split_there() -> None:
    inner = {"type": "max_probability", "thresholds": 0.5, "min_exit": 2}
    trace = trace_of(30)
    for policy in (online(policy=inner), split(policy=inner)):
        assert int(replay(policy, trace).exits.min()) == 2
        # As an engine steps it: at exit 2 all samples pass 0.5 or the least of the grid.
        state = policy.start(30, 4)
        leaves, state = policy.step(1, trace.exit_signals(1), state)
        assert not leaves.any() and not policy.can_leave(1)
        assert policy.step(2, trace.exit_signals(2), state)[0].any()
    assert split(policy=inner).names() == [4, 6, 8]
