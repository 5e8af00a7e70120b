"""
Captured batches whose heads and decisions are kernels. Without a GPU these run in Triton's interpreter:

    TRITON_INTERPRET=1 pytest tests/execution/test_captured_batches_kernels.py
"""

from __future__ import annotations

import pytest
import torch

from beem_plugin.execution.batch_decider import kernels_for
from beem_plugin.execution.compaction import Compaction
from beem_plugin.execution.engine import Engine, gather_decisions
from beem_plugin.execution.metering.baselines import FullDepth
from beem_plugin.exits.policies import Beem, Final, MaxProbability, Patience, Voting
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from tests.execution.captured_worlds import (
    CPU,
    WithKernels,
    capture_at_once,
    compare,
)
from tests.execution.test_fused_window import HERE, needs_triton, network
from tests.execution.worlds import FUSED_POLICIES, WEIGHTS, Wanted, World, make_batches


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_at_once(monkeypatch)


def test_who_has_kernels() -> None:
    made = network("cls").cpu()
    policies: list[ExitPolicy] = [Voting(thresholds=0.9), Wanted(), Patience(1)]
    for policy in policies:
        policy.bind(made.exit_layers, 3)
    assert kernels_for(made, policies[0], CPU, set()) is None
    assert kernels_for(World(), policies[1], CPU, set()) is None
    handle = made.backbone.transformer_model.register_forward_hook(lambda *given: None)
    assert kernels_for(made, policies[2], CPU, set()) is None, "somebody listens"
    handle.remove()


def test_the_option() -> None:
    engine = Engine.from_params({"type": "compaction", "capture": False})
    assert isinstance(engine, Compaction) and not engine.capture and Compaction().capture
    assert not Compaction()._can_capture(CPU)


on_a_cpu = pytest.mark.skipif(HERE.type == "cuda", reason="graphs are captured there")


@needs_triton
@on_a_cpu
@pytest.mark.parametrize("family, pooling", [("bert", "mean"), ("mpnet", "cls"), ("deberta-v2", "mean")])
@pytest.mark.parametrize("policy", FUSED_POLICIES, ids=lambda policy: type(policy).__name__)
def test_kernels_give_the_answers_of_uncaptured_batches(policy: ExitPolicy, family: str, pooling: str) -> None:
    made, engine = network(pooling, family), WithKernels()
    compare(engine, made, policy, make_batches(30, 14, longest=20))
    assert engine._batches is not None and engine._batches.recorder.replayed  # type: ignore[attr-defined]


@needs_triton
@on_a_cpu
def test_kernels_in_turns() -> None:
    made, engine = network("mean"), WithKernels(check_every=2)
    policies: list[ExitPolicy] = [MaxProbability(thresholds=0.8), Beem(thresholds=0.2, weights=WEIGHTS)]
    for policy in (*policies, *policies):
        compare(engine, made, policy, make_batches(12, 5))
    compare(engine, FullDepth(made), Final(), make_batches(12, 5))


@needs_triton
@on_a_cpu
def test_networks_whose_states_hold_more_have_no_graphs(caplog: pytest.LogCaptureFixture) -> None:
    world, engine = World(), WithKernels()
    world.signal_modules = torch.nn.ModuleDict()
    policy = Patience(1)
    compare(engine, world, policy, make_batches(12, 5))
    assert engine._batches is None and not caplog.records


@needs_triton
@on_a_cpu
def test_kernels_that_say_something_else_are_found_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = network("mean")
    monkeypatch.setattr(
        other, "exit_logits", lambda number, state: 2 - MultiExitEncoder.exit_logits(other, number, state)
    )
    engine = WithKernels()
    for _ in range(2):
        compare(engine, other, MaxProbability(thresholds=0.8), make_batches(12, 5))
    assert len(caplog.records) == 1 and "KernelsDisagree" in caplog.text and engine._batches is None


@pytest.mark.skipif(HERE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_on_a_gpu(dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    from beem_plugin.execution.precision import cast_network

    made = network("mean")
    cast_network(made, dtype)
    batches = make_batches(400, 23, longest=35)
    for policy in FUSED_POLICIES:
        engine, plain = Compaction(), Compaction(capture=False)
        for _ in range(2):
            _, found = gather_decisions(engine.run(made, policy, batches), 3, 400)
        _, expected = gather_decisions(plain.run(made, policy, batches), 3, 400)
        assert engine._batches is not None and engine._batches.failure is None and engine._batches.shapes
        assert (found.exits == expected.exits).float().mean() > (0.98 if dtype == "float16" else 0.99)
    assert not [record for record in caplog.records if "graphs" in record.getMessage()]
