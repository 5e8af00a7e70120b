"""Engines and policies that learn while predicting: after each sample, or after each batch."""

from __future__ import annotations

from typing import Any

import pytest

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution import Compaction, DepthPools, Engine, Single
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.execution.onnx.export import export_network
from beem_plugin.exits.policies import ExitPolicy
from tests.execution.worlds import World, make_batches, reference
from tests.ragged import ragged_batches

GRID = [0.4, 0.5, 0.7, 0.99]
CONFIGS: list[dict[str, Any]] = [
    {"type": "online", "policy": {"type": "max_probability"}, "grid": GRID, "exploration": 0.3},
    {"type": "split", "policy": {"type": "max_probability", "thresholds": 0.6}, "exploration": 0.3},
]


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["type"])
def test_alone_samples_exit_as_in_a_replay_of_the_stream(world: World, config: dict[str, Any]) -> None:
    policy, again = ExitPolicy.from_params(config), ExitPolicy.from_params(config)
    batches = make_batches(60, 7, shuffled=False)
    found = gather_decisions(Single().run(world, policy, ragged_batches(batches)), 3)[1]
    expected = reference(world, again, batches)
    assert found.exits.tolist() == expected.exits.tolist() and len(set(found.exits.tolist())) > 2
    assert policy.bandit.plays.tolist() == again.replayed.plays.tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", [Compaction(), DepthPools(window_tokens=1)], ids=["compaction", "depth_pools"])
def test_a_batch_has_one_choice_and_the_next_batch_another(world: World, engine: Engine) -> None:
    policy = ExitPolicy.from_params(CONFIGS[0])
    parts = [make_batches(9, 9, seed=seed, shuffled=False) for seed in range(5)]
    for number, part in enumerate(parts):
        policy.bind(world.exit_layers, 3)
        fixed = {"type": "max_probability", "thresholds": GRID[policy.bandit.arm]}  # type: ignore[attr-defined]
        expected = reference(world, ExitPolicy.from_params(fixed), part)
        found = gather_decisions(engine.run(world, policy, ragged_batches(part)), 3)[1]
        if isinstance(engine, Compaction):  # a window of the other may be smaller
            assert found.exits.tolist() == expected.exits.tolist()
            assert policy.bandit.plays.sum() == 9 * (number + 1)  # type: ignore[attr-defined]
    assert policy.bandit.plays.sum() == 45 and (policy.bandit.plays > 0).all()  # type: ignore[attr-defined]


def test_a_long_input_is_divided_so_that_the_policy_learns_within_it(world: World) -> None:
    policy = ExitPolicy.from_params(CONFIGS[0])
    gather_decisions(DepthPools(tokens_per_chunk=60).run(world, policy, ragged_batches(make_batches(90, 90))), 3)
    assert (policy.bandit.plays > 0).all() and policy.bandit.plays.sum() == 90  # type: ignore[attr-defined]


def test_what_was_compiled_is_used_on_while_the_policy_learns(world: World) -> None:
    engine, policy = Compaction(), ExitPolicy.from_params(CONFIGS[0])
    compiled = engine.prepare(world, policy)
    for seed in range(3):
        gather_decisions(engine.run(world, policy, ragged_batches(make_batches(5, 5, seed=seed))), 3)
    assert engine.prepare(world, policy) is compiled
    assert compiled.policy.bandit is policy.bandit  # type: ignore[attr-defined]


def test_an_export_needs_fixed_thresholds(world: World, tmp_path: Any) -> None:
    policy = ExitPolicy.from_params(CONFIGS[0])
    with pytest.raises(ConfigurationError, match="found online, which adapts while predicting"):
        export_network(world, policy, tmp_path)
