"""The exits of published methods with branches: every engine, exports and quantised networks give those of batch 1."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions, replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.execution import Compaction, DepthPools, Engine, Single
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.exits.branches import BranchedHead
from beem_plugin.exits.policy import ExitPolicy
from tests.execution.worlds import make_batches, same
from tests.exits.test_branches import KINDS, network
from tests.ragged import ragged_batches

MEAN = {"pooler": {"type": "bert_pooler", "pooling": "mean"}, "share_pooler": False}
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "beem": ({}, {"type": "beem", "weights": [0.1, 0.2, 0.3, 0.4]}),
    "elasticbert": ({"share_pooler": False, "gradient_equilibrium": True}, {"type": "entropy"}),
    "fastbert": ({"head": {"type": "attention", "size": 8}}, {"type": "entropy", "normalized": True}),
    "ztw": ({"head": "cascaded"}, {"type": "cascaded_ensemble"}),
    "past_future": ({"head": "past_future"}, {"type": "entropy"}),
    "palbert": ({"share_pooler": True, "share_classifier": True, "signals": ["halt"]}, {"type": "halting"}),
    "berxit": ({"signals": ["predicted_error"]}, {"type": "predicted_error"}),
    "jei_dnn": ({"signals": ["gate"]}, {"type": "gate"}),
    "mue": ({"share_classifier": True, "signals": ["similarity"]}, {"type": "similarity"}),
    "pabee": ({}, {"type": "patience", "patience": 1}),
    "shallow_deep": (
        {"pooler": "mixed_pooler", "share_pooler": False},
        {"type": "max_probability", "fallback": "most_confident"},
    ),
    "recommended": ({**MEAN, "fork": {"type": "scaled", "exit": 0.3}}, {"type": "max_probability"}),
}
EXPORTED = ("beem", "elasticbert", "fastbert", "pabee", "shallow_deep", "recommended")
ENGINES: list[Engine] = [Single(), Compaction(), DepthPools(tokens_per_chunk=24, window_tokens=90)]
SAMPLES = 17


@functools.cache
def made(name: str, kind: int = 0) -> tuple[Any, ExitPolicy, list[dict[str, Tensor]], ExitDecisions]:
    """
    A network with a branch of `KINDS`, its policy with thresholds under which some samples exit early, inputs, and the
    decisions about each of them alone.
    """
    encoder, config = NETWORKS[name]
    model, batches = network(KINDS[kind], **encoder), make_batches(SAMPLES, 6)
    with torch.no_grad():
        for parameter in model.signal_modules.parameters():
            parameter.mul_(5)
    trace = alone(model, batches)
    if "patience" not in config:
        # At each exit in the widest gap of the middle half of its scores, so that rounding changes no decision.
        probe = ExitPolicy.from_params({**config, "thresholds": "never"})
        probe.bind(model.exit_layers, 3)
        table = probe.scores(trace)
        middle = table.scores[:, :-1].double().sort(0).values[SAMPLES // 4 : -(SAMPLES // 4)]
        widest = middle.diff(dim=0).argmax(0, keepdim=True)
        limits = ((middle.gather(0, widest) + middle.gather(0, widest + 1)) / 2)[0].tolist()
        config = {**config, "thresholds": [table.orient(limit) for limit in limits]}
    policy = ExitPolicy.from_params(config)
    policy.bind(model.exit_layers, 3)
    return model, policy, batches, replay(policy, trace)


@torch.no_grad()
def alone(model: Any, batches: list[dict[str, Tensor]]) -> ExitTrace:
    """Every sample alone and without padding, through all exits."""
    logits, extra, indices = [], [], []
    for samples in ragged_batches(batches):
        indices.append(samples.index)
        for number in range(len(samples)):
            state, found = model.embed(samples.padded(number, number + 1)), []
            for exit_number in range(1, model.num_exits + 1):
                state = model.advance(exit_number, state)
                found.append(model.exit_signals(exit_number, state))
            logits.append(torch.stack([signals.logits for signals in found], 1))
            extra.append({name: torch.stack([s.extra[name] for s in found], 1) for name in found[0].extra})
    order = torch.cat(indices).argsort()
    signals = {name: torch.cat([values[name] for values in extra])[order] for name in extra[0]}
    labels = torch.arange(SAMPLES) % 3
    return ExitTrace(torch.cat(logits)[order], labels, signals=signals, meta={"exit_layers": model.exit_layers})


def decisions(engine: Engine, model: Any, policy: ExitPolicy, batches: list[dict[str, Tensor]]) -> ExitDecisions:
    return gather_decisions(engine.run(model, policy, ragged_batches(batches)), 3, total=SAMPLES)[1]


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[branch["type"] for branch in KINDS])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_engine_equals_batch_1(name: str, kind: int) -> None:
    model, policy, batches, expected = made(name, kind)
    assert [isinstance(head, BranchedHead) for head in model.exits] == [True] * 3 + [False]
    assert len(set(expected.exits.tolist())) > 1
    for engine in ENGINES:
        same(decisions(engine, model, policy, batches), expected)


@pytest.mark.parametrize("name", EXPORTED)
def test_exports_equal_batch_1(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from beem_plugin.execution.onnx.export import export_network
    from tests.execution.exported import run_exported

    model, policy, batches, expected = made(name)
    export_network(model, policy, tmp_path)
    same(run_exported(tmp_path, batches), expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_quantised_networks_run_in_every_engine(name: str) -> None:
    """Activations are quantised by the range of a whole batch, so that single decisions may differ from batch 1."""
    model, policy, batches, _ = made(name)
    model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    assert type(model.exits[0].branch.down) is not torch.nn.Linear
    expected = replay(policy, alone(model, batches))
    for engine in ENGINES:
        found = decisions(engine, model, policy, batches)
        assert int((found.exits == expected.exits).sum()) >= SAMPLES - 3
        assert int((found.predictions == expected.predictions).sum()) >= SAMPLES - 3
