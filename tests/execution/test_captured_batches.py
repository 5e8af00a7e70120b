"""Captured batches give the answers of uncaptured ones: who is computed, in which graphs, and what is made anew."""

from __future__ import annotations

import pytest
import torch

from beem_plugin.execution.captured_batches import CapturedBatches
from beem_plugin.execution.metering.baselines import FullDepth
from beem_plugin.exits.policies import Beem, Final, MaxProbability
from beem_plugin.exits.policy import ExitPolicy
from tests.execution.captured_worlds import (
    EVERYBODY,
    NOBODY,
    OnTheSpotCompaction,
    batches_of_many_kinds,
    capture_at_once,
    compare,
    recorded,
)
from tests.execution.test_fused_window import network
from tests.execution.worlds import FUSED_POLICIES, WEIGHTS, make_batches


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_at_once(monkeypatch)


@pytest.mark.parametrize("options", [{}, {"check_every": 2}, {"check_every": 3, "min_leaving": 0.3}])
@pytest.mark.parametrize("policy", [*FUSED_POLICIES, NOBODY, EVERYBODY], ids=lambda policy: type(policy).__name__)
def test_stand_ins_give_the_answers_of_uncaptured_batches(policy: ExitPolicy, options: dict) -> None:
    engine = OnTheSpotCompaction(**options)
    for seed in (1, 2):
        compare(engine, network("cls").cpu(), policy, batches_of_many_kinds(seed))


@pytest.mark.parametrize("family", ["mpnet", "modernbert-local", "deberta-v2-convolution", "albert", "distilbert"])
def test_stand_ins_in_other_families(family: str) -> None:
    exits = compare(
        OnTheSpotCompaction(), network("mean", family).cpu(), MaxProbability(thresholds=0.8), batches_of_many_kinds(3)
    )
    assert len(set(exits.tolist())) > 1


def test_an_exit_costs_one_launch_and_rows_become_fewer() -> None:
    made, engine = network("cls").cpu(), OnTheSpotCompaction()
    policy = MaxProbability(thresholds=0.8)
    batches = make_batches(30, 30)
    compare(engine, made, policy, batches)
    decider, recorder, held = recorded(engine)
    recorder.replayed = 0
    decider.decided.clear()
    exits = compare(engine, made, policy, batches)
    assert recorder.replayed == made.num_exits - 1, "the last exit goes with the one before"
    staying = [30, *(int((exits > number).sum()) for number in (1, 2))]
    rows = [32, *(max(4, 1 << (count - 1).bit_length()) for count in staying[1:])]
    assert decider.decided == [(1, rows[0]), (2, rows[1]), (3, rows[2]), (4, rows[2])] and rows[2] < rows[0]
    assert {count for _, count in held.shapes} == set(rows)


def test_without_early_exits_a_batch_is_one_launch() -> None:
    made, engine = network("cls").cpu(), OnTheSpotCompaction()
    for subject, policy in ((FullDepth(made), Final()), (made, MaxProbability(thresholds="never"))):
        compare(engine, subject, policy, make_batches(9, 9))
        _, recorder, _ = recorded(engine)
        assert recorder.captured == recorder.replayed == 1


def test_nothing_is_launched_when_all_have_left() -> None:
    engine = OnTheSpotCompaction()
    assert set(compare(engine, network("cls").cpu(), EVERYBODY, make_batches(20, 5)).tolist()) == {1}
    _, recorder, _ = recorded(engine)
    assert recorder.replayed == 4


def test_few_shapes_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapturedBatches, "max_shapes", 2)
    engine = OnTheSpotCompaction()
    made = network("cls").cpu()
    for seed in (1, 2):
        compare(engine, made, MaxProbability(thresholds=0.8), batches_of_many_kinds(seed))
        assert len(recorded(engine)[2].shapes) == 2


def test_one_engine_for_two_policies_and_changing_weights() -> None:
    made, engine = network("cls").cpu(), OnTheSpotCompaction()
    batches = make_batches(20, 8)
    policies = [MaxProbability(thresholds=0.8), Beem(thresholds=0.2, weights=WEIGHTS)]
    before = [compare(engine, made, policy, batches).tolist() for policy in (*policies, *policies)]
    assert before[:2] == before[2:] and before[0] != before[1]
    with torch.no_grad():
        for head in made.exits:
            head.classifier.weight.mul_(0.3)
    assert compare(engine, made, policies[1], batches).tolist() != before[1]


def test_token_types_and_batches_without_mask_or_index() -> None:
    made, engine, policy = network("cls").cpu(), OnTheSpotCompaction(), MaxProbability(thresholds=0.8)
    batches = make_batches(20, 8)
    for batch in batches:
        batch["token_type_ids"] = (torch.arange(batch["input_ids"].shape[1]) % 2) * batch["attention_mask"]
    typed = compare(engine, made, policy, batches)
    plain = compare(engine, made, policy, [{**b, "token_type_ids": 0 * b["input_ids"]} for b in batches])
    assert typed.tolist() != plain.tolist()
    compare(engine, made, policy, [{"input_ids": batch["input_ids"]} for batch in batches])
    assert len(recorded(engine)[2].lanes) == 2, "with token types and without"


def test_padding_of_all_kinds() -> None:
    made, engine, policy = network("mean").cpu(), OnTheSpotCompaction(), MaxProbability(thresholds=0.8)
    for batch in make_batches(20, 8, longest=20):
        other = torch.where(batch["attention_mask"] == 0, 17, batch["input_ids"])
        wider = torch.nn.functional.pad(batch["attention_mask"], (0, 9))
        compare(engine, made, policy, [{**batch, "input_ids": other, "attention_mask": batch["attention_mask"].bool()}])
        compare(engine, made, policy, [{"input_ids": torch.nn.functional.pad(other, (0, 9)), "attention_mask": wider}])
