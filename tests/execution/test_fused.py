"""
The fused kernels say what the network and the policy say. Without a GPU they run in Triton's interpreter:

    TRITON_INTERPRET=1 pytest tests/execution/test_fused.py
"""

from __future__ import annotations

import math
import os

import pytest
import torch

from beem_plugin.execution.fused_decision import fused_decisions
from beem_plugin.execution.fused_rule import fused_rule
from beem_plugin.execution.metering.baselines import FullDepth
from beem_plugin.execution.precision import cast_network
from beem_plugin.exits.policies import MaxProbability, Voting
from beem_plugin.exits.policy import ExitPolicy
from tests.execution.worlds import FUSED_POLICIES, World, make_batches

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def can_run() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return HERE.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.skipif(not can_run(), reason="needs Triton, and a GPU or TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("policy", FUSED_POLICIES, ids=lambda policy: type(policy).__name__)
@torch.inference_mode()
def test_kernels_say_what_the_network_and_the_policy_say(policy: ExitPolicy, pooling: str, dtype: str) -> None:
    world = World()
    if pooling == "mean":
        for head in world.exits:
            head.pooler.pooling = "mean"
    cast_network(world, dtype).to(HERE)
    policy.bind(world.exit_layers, world.num_labels)
    fused = fused_decisions(world, policy, HERE)
    assert fused is not None
    for batch in make_batches(6, 1):
        batch = {name: value.to(HERE) for name, value in batch.items()}
        state, memory = world.embed(batch), policy.start(1, 4, HERE)
        for exit_number in (1, 2, 3, 4):
            state = world.advance(exit_number, state)
            answer = torch.full((2 + 3,), math.nan, dtype=torch.float64, device=HERE)
            fused.run(exit_number, state, answer)
            signals = world.exit_signals(exit_number, state)
            leaves, memory = policy.step(exit_number, signals, memory)
            score = policy.score(memory)
            close = 1e-5 if dtype == "float32" else 5e-2
            torch.testing.assert_close(answer[2:], signals.log_probabilities[0], atol=close, rtol=close)
            assert fused.rule.has_score == (score is not None)
            if score is not None:
                torch.testing.assert_close(answer[1], score[0], atol=close, rtol=close)
            if exit_number < 4 and dtype == "float32":
                assert bool(answer[0]) == bool(leaves)


@pytest.mark.skipif(not can_run(), reason="needs Triton, and a GPU or TRITON_INTERPRET=1")
@pytest.mark.parametrize("rows, tokens", [(2, 16), (3, 208)])
def test_inputs_are_staged(rows: int, tokens: int) -> None:
    world = World()
    policy = FUSED_POLICIES[0]
    policy.bind(world.exit_layers, world.num_labels)
    fused = fused_decisions(world, policy, HERE)
    assert fused is not None
    staging = torch.randint(0, 9, (rows, 1, tokens), generator=torch.Generator().manual_seed(1))
    staging = staging.pin_memory() if HERE.type == "cuda" else staging
    inputs, mask = torch.empty_like(staging, device=HERE), torch.empty(1, tokens, dtype=torch.uint8, device=HERE)
    fused.stage(staging, inputs, mask)
    assert torch.equal(inputs.cpu(), staging) and torch.equal(mask.cpu(), (staging[-1] != 0).byte())


def test_rules_that_the_kernels_know() -> None:
    for policy in FUSED_POLICIES:
        policy.bind([1, 2, 3, 4], 3)
        rule = fused_rule(policy)
        assert rule is not None and len(rule.numbers) == 4

    class Other(MaxProbability):
        """A rule of somebody's own."""

    for other in (Other(thresholds=0.5), MaxProbability(thresholds=0.5, fallback="most_confident"), Voting(0.5)):
        other.bind([1, 2, 3, 4], 3)
        assert fused_rule(other) is None


def test_full_depth_is_fused_too() -> None:
    full = FullDepth(World())  # type: ignore[arg-type]
    assert full.exits is not None and len(full.exits) == 1
