"""The generated kernels decide as the policies' own methods do (in Triton's interpreter where there is no GPU)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.exits.policies import ExitPolicy, ThresholdPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from tests.execution.worlds import World

pytest.importorskip("triton")

from beem_plugin.execution import Single
from beem_plugin.execution.compiled.network import CompiledNetwork
from beem_plugin.execution.compiled.policy_kernel import ClassifierSignals, Decider, PolicyKernel
from beem_plugin.execution.compiled.step_trace import UnsupportedStep

EXITS = 4
SAMPLES = 40
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WEIGHTS = [0.1, 0.2, 0.3, 0.4]
CONFIGS: list[dict[str, Any]] = [
    {"type": "beem", "weights": WEIGHTS, "thresholds": 0.3},
    {"type": "beem", "weights": WEIGHTS, "thresholds": [0.05, "never", 0.3], "on_disagreement": "zero", "min_exit": 2},
    {"type": "max_probability", "thresholds": 0.7},
    {"type": "confidence", "thresholds": 0.7, "fallback": "most_confident"},
    {"type": "margin", "thresholds": 0.5},
    {"type": "entropy", "thresholds": 0.5},
    {"type": "entropy", "thresholds": 0.5, "normalized": True, "min_exit": 3},
    {"type": "patience", "patience": 1},
    {"type": "confident_patience", "patience": 1, "entropy_threshold": 0.6},
    {"type": "confident_patience", "patience": 2, "entropy_threshold": 0.6, "output": "run_mean"},
    {"type": "voting", "thresholds": 0.9, "exponent": 0.5},
    {"type": "cascaded_ensemble", "thresholds": 0.7},
    {"type": "cascaded_ensemble", "thresholds": {"type": "budget", "speedup": 1.5}, "weights": "fit"},
    {"type": "similarity", "thresholds": 0.6},
    {"type": "predicted_error", "thresholds": 0.3},
    {"type": "halting", "threshold": 0.6},
    {"type": "gate"},
    {"type": "expected_gain", "thresholds": {"type": "budget", "speedup": 1.5}},
    {"type": "calibrated", "policy": {"type": "beem", "weights": WEIGHTS, "thresholds": 0.3}},
    {"type": "calibrated", "calibration": "vector", "policy": {"type": "voting", "thresholds": 0.9}},
    {"type": "decaying_threshold", "policy": {"type": "margin", "thresholds": 0.6}},
    {"type": "fixed_exit", "exit": 2},
    {"type": "final"},
]
SHAPES = [(config, labels) for config in CONFIGS for labels in (2, 3)]


def built(config: dict[str, Any], num_labels: int) -> ExitPolicy:
    """The policy, fitted on a random trace where its config leaves numbers open."""
    policy = ExitPolicy.from_params(dict(config))
    policy.bind(list(range(1, EXITS + 1)), num_labels)
    if not policy.is_calibrated:
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(0, num_labels, (300,), generator=generator)
        signal = torch.nn.functional.one_hot(labels, num_labels)[:, None] * torch.linspace(0.5, 3, EXITS)[None, :, None]
        logits = torch.randn(300, EXITS, num_labels, generator=generator) + signal
        policy.calibrate(ExitTrace(logits, labels, meta={"exit_layers": list(range(1, EXITS + 1))}))
    return policy


def compare(policy: ExitPolicy, samples: int = SAMPLES) -> int:
    """Steps the policy and its kernel exit by exit; returns how many decisions were to exit."""
    kernel = PolicyKernel(policy, DEVICE)
    state, expected_state = kernel.start(samples), policy.start(samples, EXITS, DEVICE)
    generator = torch.Generator().manual_seed(1)
    exited = 0
    for exit_number in kernel.sources:
        logits = (3 * torch.randn(samples, policy.num_labels, generator=generator)).to(DEVICE)
        extra = {name: torch.rand(samples, generator=generator).to(DEVICE) for name in policy.required_signals}
        out = torch.full((samples, 2 + policy.num_labels), float("nan"), dtype=torch.float64, device=DEVICE)
        signals = ExitSignals(logits, extra)
        _, state = kernel.step(exit_number, signals, state, out)
        leaves, expected_state = policy.step(exit_number, signals, expected_state)
        assert torch.equal(out[:, 0].bool(), leaves)
        torch.testing.assert_close(out[:, 2:], policy.output(exit_number, signals, expected_state).double())
        score = policy.score(expected_state)
        assert kernel.has_score == (score is not None)
        if score is not None:
            torch.testing.assert_close(out[:, 1], score.double())
        exited += int(leaves.sum())
    return exited


@pytest.mark.parametrize(("config", "num_labels"), SHAPES, ids=[f"{c['type']}-{labels}" for c, labels in SHAPES])
def test_kernel_decides_as_the_policy(config: dict[str, Any], num_labels: int) -> None:
    assert compare(built(config, num_labels)) > 0 or config["type"] == "final"


def test_every_registered_policy_is_covered() -> None:
    """Those that adapt while predicting run without kernels."""
    classes = {ExitPolicy.by_name(config["type"]) for config in CONFIGS}
    fixed = [name for name in ExitPolicy.list_available() if not ExitPolicy.by_name(name).adapts]
    missing = [name for name in fixed if ExitPolicy.by_name(name) not in classes]
    assert [name for name in missing if ExitPolicy.by_name(name).__module__.startswith("beem_plugin.exits")] == []


@pytest.mark.parametrize("num_labels", [7, 11, 40])
def test_any_number_of_labels(num_labels: int) -> None:
    assert compare(built(CONFIGS[0], num_labels)) > 0


def test_one_sample() -> None:
    compare(built(CONFIGS[0], 3), samples=1)


def test_regression() -> None:
    assert compare(built({"type": "patience", "patience": 1, "tolerance": 2.0}, 1)) > 0


def test_exits_of_equal_structure_share_a_kernel() -> None:
    kernel = PolicyKernel(built({"type": "entropy", "thresholds": [0.1, 0.2, 0.3]}, 3), DEVICE)
    assert kernel.kernels[1] is kernel.kernels[2] is kernel.kernels[3] is not kernel.kernels[4]


class Cubed(ThresholdPolicy):
    """A policy of a user's own, with a state."""

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return ExitState(score=self.zeros(batch_size, device))

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        score = signals.confidence * signals.confidence * signals.confidence + 0.1 * state["score"]
        return ExitState(score=torch.maximum(score, state["score"]))


class Sorted(Cubed):
    """Orders the samples, which a kernel that sees a block of them cannot."""

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return ExitState(score=signals.confidence.sort().values)


class Branching(Cubed):
    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        score: Tensor = signals.confidence
        return ExitState(score=score if score.sum().item() > 0 else -score)


def bound(policy: ExitPolicy) -> ExitPolicy:
    policy.bind(list(range(1, EXITS + 1)), 3)
    return policy


def test_policy_of_a_user() -> None:
    assert compare(bound(Cubed(thresholds=0.5))) > 0


@pytest.mark.parametrize("kind", [Sorted, Branching])
def test_what_has_no_kernel_is_refused(kind: type[ThresholdPolicy]) -> None:
    with pytest.raises(UnsupportedStep):
        PolicyKernel(bound(kind(thresholds=0.5)), DEVICE)


@pytest.mark.parametrize("num_labels", [2, 3])
def test_kernel_computes_the_classifier_of_one_sample(num_labels: int) -> None:
    policy = built(CONFIGS[0], num_labels)
    kernel = PolicyKernel(policy, DEVICE)
    classifier = torch.nn.Linear(20, num_labels).to(DEVICE)
    vector = 3 * torch.randn(1, 20, device=DEVICE)
    assert kernel.takes_classifier(1, 20) and not kernel.takes_classifier(2, 20)
    found, expected = (torch.zeros(1, 2 + num_labels, dtype=torch.float64, device=DEVICE) for _ in range(2))
    with torch.no_grad():
        kernel.step(1, ClassifierSignals(vector, classifier), kernel.start(1), found)
        kernel.step(1, ExitSignals(classifier(vector)), kernel.start(1), expected)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kind"), [("fused", PolicyKernel), ("plain", Decider)])
def test_plain_heads_leave_out_the_kernel_of_the_policy_alone(heads: str, kind: type) -> None:
    engine = Single(heads=heads)
    assert engine.use_kernels is None, "blocks are computed by kernels in both cases"
    engine.use_kernels = True  # as on a GPU
    network = engine.prepare(World(), built(CONFIGS[0], World().num_labels))
    assert isinstance(network, CompiledNetwork) and network.use_kernels and type(network.decider) is kind
