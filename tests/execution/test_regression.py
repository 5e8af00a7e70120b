"""Engines serve a regression: every sample is given the value of the exit where the slow reference lets it go."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.engine import Engine, gather_decisions
from beem_plugin.exits.policy import ExitPolicy
from tests.execution.worlds import World, make_batches, reference
from tests.ragged import ragged_batches

POLICIES: dict[str, dict[str, Any]] = {
    "patience": {"patience": 1, "tolerance": 0.5},
    "predicted_error": {"thresholds": 0.3},
    "halting": {"threshold": 0.5},
    "similarity": {"thresholds": 0.7},
    "fixed_exit": {"exit": 2},
    "final": {},
}


@pytest.fixture(scope="module")
def world() -> World:
    torch.manual_seed(0)
    return World(num_labels=1)


@pytest.mark.parametrize("engine", ["single", "compaction", "depth_pools"])
@pytest.mark.parametrize("name", POLICIES)
def test_values_and_exits_are_the_references(world: World, engine: str, name: str) -> None:
    policy = ExitPolicy.from_params({"type": name, **POLICIES[name]})
    batches = make_batches(40, 7)
    expected = reference(world, policy, batches)
    runs = Engine.from_params({"type": engine}).run(world, policy, ragged_batches(batches))
    index, found = gather_decisions(runs, 1, 40)
    assert index.tolist() == list(range(40))
    assert found.exits.tolist() == expected.exits.tolist()
    assert found.predictions.dtype == torch.float64 and torch.equal(found.predictions, found.log_probabilities[:, 0])
    torch.testing.assert_close(found.predictions, expected.predictions, atol=2e-4, rtol=1e-4)
    if name not in ("fixed_exit", "final"):
        assert len(set(found.exits.tolist())) > 1, "a test in which all leave at one exit shows little"


def test_a_rule_on_confidence_is_refused_before_anything_runs(world: World) -> None:
    policy = ExitPolicy.from_params({"type": "max_probability", "thresholds": 0.9})
    with pytest.raises(ConfigurationError, match="found a regression"):
        next(iter(Engine.from_params({"type": "single"}).run(world, policy, ragged_batches(make_batches(3, 2)))))
