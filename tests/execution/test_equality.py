"""Every engine returns the results of the slow reference, for any order and batches."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, NotCalibratedError
from beem_plugin.execution import Compaction, DepthPools, Engine, Single
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.execution.precision import cast_network
from beem_plugin.exits.policies import MaxProbability
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from tests.backbones.tiny_models import CONFIGS
from tests.execution.worlds import Wanted, World, check, make_batches, random_engine, reference, reference_trace
from tests.exits.every_policy import every_policy
from tests.ragged import ragged_batches

ENGINES = {
    "single": Single(),
    "compaction": Compaction(),
    "compaction, seldom": Compaction(check_every=2, min_leaving=0.3),
    "depth_pools": DepthPools(),
    "depth_pools, small": DepthPools(tokens_per_chunk=24, window_tokens=90, min_leaving=0.0),
}


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


def check_all(world: World, policies: Iterable[ExitPolicy], batches: list[dict[str, Tensor]]) -> list[ExitDecisions]:
    """Every engine with every policy on one network; the decisions of the last engine."""
    trace = reference_trace(world, batches)
    return [[check(engine, world, policy, batches, trace) for engine in ENGINES.values()][-1] for policy in policies]


@pytest.mark.parametrize("shift", [0, -10, 10, 1])
def test_random_exits(world: World, shift: int) -> None:
    (found,) = check_all(world, [Wanted(shift)], make_batches(37, 8, seed=shift))
    expected = {0: {1, 2, 3, 4}, -10: {1}, 10: {4}, 1: {2, 3, 4}}[shift]
    assert set(found.exits.tolist()) == expected


@pytest.mark.parametrize("count, batch_size", [(1, 1), (2, 1), (9, 9), (9, 4)])
def test_few_samples(engine: Engine, world: World, count: int, batch_size: int) -> None:
    check(engine, world, Wanted(), make_batches(count, batch_size))


@pytest.fixture(scope="module")
def trace(world: World) -> ExitTrace:
    return reference_trace(world, make_batches(20, 7))


@pytest.mark.parametrize("policy", every_policy(4), ids=lambda policy: type(policy).__name__)
def test_every_policy(engine: Engine, world: World, policy: ExitPolicy, trace: ExitTrace) -> None:
    check(engine, world, policy, make_batches(20, 7), trace)


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family(family: str) -> None:
    check_all(World(family), [Wanted()], make_batches(12, 5))


@pytest.mark.parametrize("exit_layers", [[2, 4], [1, 4], [4]])
def test_exits_at_some_layers(exit_layers: list[int]) -> None:
    check_all(World(exit_layers=exit_layers), [Wanted()], make_batches(15, 4))


def test_no_samples(engine: Engine, world: World) -> None:
    index, found = gather_decisions(engine.run(world, Wanted(), []), 3, total=0)
    assert len(index) == 0 and found.log_probabilities.shape == (0, 3)


def test_batches_without_index_or_mask(engine: Engine, world: World) -> None:
    bare = [{"input_ids": torch.randint(3, 60, (size, 6))} for size in (3, 2)]
    index, _ = gather_decisions(engine.run(world, Wanted(), ragged_batches(bare)), 3, total=5)
    assert index.tolist() == [0, 1, 2, 3, 4]


def test_token_types_are_carried_along(engine: Engine, world: World) -> None:
    batches = make_batches(11, 4)
    for batch in batches:
        batch["token_type_ids"] = (torch.arange(batch["input_ids"].shape[1]) % 2) * batch["attention_mask"]
    check(engine, world, Wanted(), batches)


def test_worlds_drawn_at_random() -> None:
    rng = random.Random(7)
    worlds = [World("bert", [1, 3, 4]), World("mpnet"), World("modernbert-local"), World("albert", num_labels=3)]
    for case in range(60):
        batches = make_batches(rng.choice([1, 2, 5, 23]), rng.choice([1, 3, 8]), case, rng.choice([1, 6, 14]))
        check(random_engine(rng), rng.choice(worlds), Wanted(rng.choice([-9, -1, 0, 0, 0, 1, 9])), batches)


def test_an_engine_serves_again(engine: Engine, world: World) -> None:
    for seed in (1, 2):
        check(engine, world, Wanted(), make_batches(6, 3, seed))


def test_bfloat16_layers_give_the_exits_of_their_own_logits(engine: Engine) -> None:
    world = World()
    cast_network(world, "bfloat16")
    batches = make_batches(20, 6)
    index, found = gather_decisions(engine.run(world, Wanted(), ragged_batches(batches)), 3, total=20)
    full = reference(world, Wanted(), batches)
    assert torch.equal(found.exits, full.exits)
    torch.testing.assert_close(found.log_probabilities, full.log_probabilities, atol=0.6, rtol=0.1)
    assert bool(torch.isfinite(found.log_probabilities).all())


def test_uncalibrated_policies_are_refused(engine: Engine, world: World) -> None:
    with pytest.raises(NotCalibratedError):
        list(engine.run(world, MaxProbability(), ragged_batches(make_batches(2, 2))))


@pytest.mark.parametrize(
    "config", [{"type": "compaction", "check_every": 0}, {"type": "depth_pools", "min_leaving": 1.0}]
)
def test_options_out_of_range(config: dict) -> None:
    with pytest.raises(ConfigurationError, match="allowed"):
        Engine.from_params(config)


def test_the_mean_over_tokens() -> None:
    world = World()
    for head in world.exits:
        head.pooler.pooling = "mean"
    policies = [MaxProbability(thresholds=["never", 0.7, "never"]), MaxProbability(thresholds=0.7)]
    check_all(world, policies, make_batches(30, 7))


def test_heads_that_are_changed_say_what_they_say(world: World) -> None:
    """The ordinary head is recognised by its structure, and compared before it is believed."""
    engine, policy = Single(), MaxProbability(thresholds=0.7)
    other = World()
    other.exit_logits = lambda number, state: 2 - MultiExitEncoder.exit_logits(other, number, state)  # type: ignore
    check(engine, world, policy, make_batches(6, 1))
    check(engine, other, policy, make_batches(6, 1))
