"""Tokens that leave at the depth that a table says, against a token-by-token implementation."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import beem_plugin.exits.policies  # noqa: F401
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.archive_files import save_state
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.comparison.operating_curve import TraceJudge
from beem_plugin.comparison.policy_files import NamedPolicy
from beem_plugin.comparison.policy_grid import expand
from beem_plugin.comparison.trainings.judging import judge
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.data import Instance, Vocabulary
from beem_plugin.evaluation.trace import trace_archive
from beem_plugin.execution import Compaction, DepthPools, Engine, Single
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.execution.metering.macs import count_macs
from beem_plugin.execution.onnx.export import export_network
from beem_plugin.exits.policies import Final
from beem_plugin.models import HashExitEncoder, Model, MultiExitClassifier, MultiExitEncoder
from beem_plugin.models.hash_exit_encoder import AllTokens
from beem_plugin.models.multi_exit_trace import trace_model
from beem_plugin.models.saved_weights import load_weights
from beem_plugin.models.token_hash import TokenHash
from beem_plugin.tasks.engine_cases import tokens_of
from beem_plugin.training.callbacks.calibrate_exits import figures
from tests.backbones.tiny_models import CONFIGS
from tests.execution.captured_worlds import GraphsOnHost
from tests.execution.worlds import make_batches, same
from tests.ragged import ragged_batches

ENGINES: list[Engine] = [Single(), Compaction(), DepthPools(tokens_per_chunk=24, window_tokens=90)]


def build(family: str = "bert", prepared: bool = True, **encoder: Any) -> MultiExitClassifier:
    torch.manual_seed(0)
    block = {"type": "hash_exit", "backbone": {"config": dict(CONFIGS[family])}, "hash": "random", **encoder}
    config = {"type": "multi_exit_classifier", "encoder": block}
    model = Model.from_params(config, vocab=Vocabulary(["a", "b", "c"]), metric="accuracy", is_regression=False)
    assert isinstance(model, MultiExitClassifier)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    if prepared:
        model.prepare(instances())
    return model.eval()


def instances() -> list[Instance]:
    rows = []
    for batch in make_batches(40, 8, seed=9):
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            rows.append(Instance({}, {"input_ids": ids[mask.bool()].tolist()}))
    return rows


def hash_encoder(model: MultiExitClassifier) -> HashExitEncoder:
    assert isinstance(model.encoder, HashExitEncoder)
    return model.encoder


def bert_by_token(encoder: HashExitEncoder, ids: Tensor, attend_to_exited: bool) -> Tensor:
    """`(tokens, hidden)` of one sample: every token, layer after layer, by itself."""
    transformer: Any = encoder.backbone.transformer_model
    states = list(transformer.embeddings(ids[None])[0])
    depth = [int(encoder.exit_layer_of[token]) for token in ids]
    depth[0] = encoder.backbone.num_layers
    heads = transformer.config.num_attention_heads
    for number, layer in enumerate(transformer.encoder.layer, start=1):
        own = layer.attention.self
        there = [place for place in range(len(ids)) if depth[place] >= number]
        seen = torch.stack([states[place] for place in (range(len(ids)) if attend_to_exited else there)])
        after = list(states)
        for place in there:
            size = len(states[place]) // heads
            context = []
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                query, keys, values = own.query(states[place])[part], own.key(seen)[:, part], own.value(seen)[:, part]
                context.append((keys @ query / size**0.5).softmax(0) @ values)
            attended = layer.attention.output(torch.cat(context)[None], states[place][None])
            after[place] = layer.output(layer.intermediate(attended), attended)[0]
        states = after
    return torch.stack(states)


@pytest.mark.parametrize("attend_to_exited", [False, True])
@torch.inference_mode()
def test_against_a_token_by_token_implementation(attend_to_exited: bool) -> None:
    encoder = hash_encoder(build(attend_to_exited=attend_to_exited))
    assert len(encoder.exit_layer_of.unique()) == 4
    for batch in make_batches(12, 5):
        state = encoder.advance(1, encoder.embed(batch))
        for row, mask in enumerate(batch["attention_mask"].bool()):
            expected = bert_by_token(encoder, batch["input_ids"][row, mask], attend_to_exited)
            torch.testing.assert_close(state.hidden_states[row, mask], expected, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_whether_exited_tokens_are_attended_to_makes_a_difference() -> None:
    (batch,) = make_batches(4, 4)
    states = [
        (encoder := hash_encoder(build(attend_to_exited=kind))).advance(1, encoder.embed(batch)).hidden_states
        for kind in (False, True)
    ]
    assert float((states[0][:, 0] - states[1][:, 0]).abs().max()) > 1e-2


@pytest.mark.parametrize("attend_to_exited", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "electra-projected", "distilbert", "mpnet"])
@torch.inference_mode()
def test_a_table_without_early_exits_equals_the_plain_network(family: str, attend_to_exited: bool) -> None:
    encoder = hash_encoder(build(family, prepared=False, attend_to_exited=attend_to_exited))
    plain = MultiExitEncoder(3, encoder.backbone, [4])
    plain.exits = encoder.exits
    for batch in make_batches(9, 4):
        torch.testing.assert_close(encoder.outputs(batch).logits, plain.eval().outputs(batch).logits)


@torch.inference_mode()
def test_a_position_bias_goes_with_its_tokens() -> None:
    """With all tokens but the last bucket's gone before layer 4, layer 4 sees them at their own places."""
    encoder = hash_encoder(build("mpnet"))
    backbone = encoder.backbone
    for batch in make_batches(6, 3):
        found = encoder.advance(1, encoder.embed(batch)).hidden_states
        state = backbone.embed(batch)
        depth = encoder.depth_of(batch["input_ids"], state.attention_mask)
        hidden = state.hidden_states
        for layer in range(1, 5):  # everybody computed at full length, those who have left hidden by the mask
            running = depth >= layer
            after = backbone.layer(layer, backbone.make_state(hidden, running)).hidden_states
            hidden = torch.where(running[..., None], after, hidden)
        mask = batch["attention_mask"].bool()
        torch.testing.assert_close(found[mask], hidden[mask], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2"])
def test_families_whose_positions_do_not_survive_are_refused(family: str) -> None:
    with pytest.raises(ConfigurationError, match="attend_to_exited"):
        build(family)
    assert build(family, attend_to_exited=True)(**make_batches(2, 2)[0])["logits"].shape == (2, 1, 3)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
@pytest.mark.parametrize("pooler", ["bert_pooler", {"type": "bert_pooler", "pooling": "mean"}])
def test_every_engine_gives_what_the_trace_says(engine: Engine, pooler: Any) -> None:
    model = build(pooler=pooler)
    batches = make_batches(17, 5)
    expected = replay(Final(), trace_model(model, batches, None, "test"))
    _, found = gather_decisions(engine.run(model.encoder, model.exit_policy, ragged_batches(batches)), 3, 17)
    same(found, expected)


def test_it_is_trained_and_its_table_is_not() -> None:
    model = build(backbone={"config": dict(CONFIGS["bert"])}).train()
    (batch,) = make_batches(6, 6)
    output = model(**batch)
    output["loss"].backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if "pooler" not in name)
    assert "encoder.exit_layer_of" in model.state_dict()
    assert not any("exit_layer_of" in name for name, _ in model.named_parameters())


def test_frequent_tokens_leave_first() -> None:
    counts = torch.tensor([0, 60, 10, 30, 0, 10, 5, 5])  # 120 occurrences, 20 a bucket
    layers = TokenHash.from_params({"type": "frequency"}).layers(counts, 6)
    assert layers.tolist() == [6, 2, 5, 4, 6, 6, 6, 6]
    by_type = TokenHash.from_params({"type": "frequency", "num_buckets": 3, "balance": "types"}).layers(counts, 6)
    assert by_type.tolist() == [6, 2, 4, 2, 6, 4, 6, 6]
    given = {"type": "frequency", "num_buckets": 2, "bucket_layers": [3, 7]}
    assert TokenHash.from_params(given).layers(counts, 7).tolist() == [7, 3, 7, 7, 7, 7, 7, 7]
    assert TokenHash.from_params("frequency").layers(torch.tensor([9, 8, 7, 6, 5, 4]), 12).max() == 12


def test_random_tables_depend_on_the_seed_alone() -> None:
    one, again, other = (
        TokenHash.from_params({"type": "random", "seed": seed}).layers(torch.zeros(600, dtype=torch.int64), 12)
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert sorted(set(one.tolist())) == [2, 4, 6, 8, 10, 12]


def test_tables_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"5": 1, "7": 3}))
    encoder = hash_encoder(build(hash={"type": "file", "path": str(path)}))
    assert encoder.exit_layer_of[[5, 6, 7]].tolist() == [1, 4, 3]
    path.write_text(json.dumps({"5": 9}))
    with pytest.raises(DataError, match="layers 1 to 4"):
        build(hash={"type": "file", "path": str(path)})
    with pytest.raises(DataError, match="allowed: a JSON object"):
        build(hash={"type": "file", "path": str(tmp_path / "none.json")})


@pytest.mark.parametrize(
    "block",
    [
        {"hash": {"type": "frequency", "num_buckets": 0}},
        {"hash": {"type": "frequency", "num_buckets": 2, "bucket_layers": [1, 9]}},
        {"hash": {"type": "frequency", "balance": "letters"}},
        {"full_depth": 3},
    ],
)
def test_options_out_of_range(block: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="allowed"):
        build(**block)


def test_speed_ups_are_counted_token_by_token() -> None:
    encoder = hash_encoder(build(full_depth=6))
    encoder.exit_layer_of.fill_(4)
    encoder.exit_layer_of[7] = 1
    found = encoder.depth_of_tokens([[7, 7, 9], [5, 7]])  # the first token stays, whatever it is
    assert found["token_exit_histogram"] == [2, 0, 0, 3]
    assert found["average_layer"] == (2 * 1 + 3 * 4) / 5
    assert found["layer_speedup"] == 6 * 5 / 14
    assert found["layers_saved"] == pytest.approx(1 - 14 / 30)

    def layer(tokens: int) -> int:
        return tokens * (4 * 32**2 + 2 * 32 * 48) + tokens**2 * 64

    head = 32 * 32 + 32 * 3
    full = 6 * layer(3) + head + 6 * layer(2) + head
    spent = layer(3) + 3 * layer(2) + head + layer(2) + 3 * layer(1) + head
    assert found["mac_speedup"] == pytest.approx(full / spent)
    encoder.attend_to_exited = True  # then all tokens are computed, and only the two layers that are missing are saved
    assert encoder.depth_of_tokens([[7, 7, 9], [5, 7]])["mac_speedup"] == pytest.approx(
        full / (4 * layer(3) + head + 4 * layer(2) + head)
    )
    assert encoder.depth_of_tokens([]) == {}
    assert count_macs(AllTokens(encoder)).layers.shape == (4, 3)
    assert MultiExitEncoder(3, encoder.backbone).depth_of_tokens([[7]]) == {}


def test_a_training_reports_the_speed_up_of_tokens_too() -> None:
    model = build()
    trace = trace_model(model, make_batches(40, 8, seed=9), None, "test")
    found = figures(model, trace)
    batches = make_batches(40, 8, seed=9)
    tokens = hash_encoder(model).depth_of_tokens(tokens_of(ragged_batches(batches)))
    assert found["layer_speedup"] == tokens["layer_speedup"] > 1
    assert found["exit_histogram"] == [len(trace)]


def test_the_table_is_stored_with_the_weights(tmp_path: Path) -> None:
    model, other = build(), build(prepared=False)
    save_state(model.state_dict(), tmp_path / "weights.safetensors")
    load_weights(other, tmp_path / "weights.safetensors")
    assert torch.equal(hash_encoder(model).exit_layer_of, hash_encoder(other).exit_layer_of)
    (batch,) = make_batches(4, 4)
    assert torch.equal(model(**batch)["logits"], other(**batch)["logits"])


def test_it_is_neither_captured_nor_exported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder = hash_encoder(build())
    policy, engine = Final(), GraphsOnHost(length_bucket=4)
    for _ in range(2):
        list(engine.run(encoder, policy, ragged_batches(make_batches(2, 1))))
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "exit at different layers" in warnings[0]
    assert all(recorder.captured == 0 for recorder in engine.recorders)
    with pytest.raises(ConfigurationError, match="exit at different layers"):
        export_network(encoder, policy, tmp_path)


def test_the_shipped_config_counts_its_training_data_and_reports_by_token(
    tiny_environment: dict[str, str], tmp_path: Path
) -> None:
    import beem_plugin.components  # noqa: F401
    from beem_plugin.archival import load_archive
    from beem_plugin.common.params import load_config
    from beem_plugin.evaluation.evaluate import evaluate_archive
    from beem_plugin.training.train import train_model
    from tests.tiny_project import CONFIGS

    overrides = {"trainer.num_epochs": 1, "trainer.cuda_device": -1}
    train_model(load_config(CONFIGS / "rte_hashee.jsonnet", overrides, tiny_environment), tmp_path / "run")
    archive = load_archive(tmp_path / "run" / "model.tar.gz")
    assert archive.model.encoder.exit_layer_of.unique().tolist() == [1, 2, 3]  # type: ignore[union-attr, operator]
    metrics = evaluate_archive(archive, "validation").metrics
    assert metrics["exit_histogram"] == [40] and all(metrics["token_exit_histogram"])
    assert 1 < metrics["layer_speedup"] == 3 / metrics["average_layer"]
    assert metrics["mac_speedup"] > 1
    trace = trace_archive(archive, "validation")
    trace.save(tmp_path / "dev.npz")
    loaded = ExitTrace.load(tmp_path / "dev.npz")
    (replayed,) = TraceJudge(loaded).single({"type": "final"})[0].results
    for key in ("layer_speedup", "layers_saved", "average_layer", "mac_speedup", "token_exit_histogram"):
        assert replayed.depth[key] == pytest.approx(metrics[key], rel=1e-12)
    variant = NamedPolicy("final", "here", expand({"type": "final"}))
    (family,) = TraceJudge(loaded).families(variant)
    assert family.results[0].layer_speedup == replayed.layer_speedup
    # Half of the samples are half of the tokens, and a trace of older days has samples' depths alone.
    assert loaded.token_depth is not None
    half = loaded.select(range(20)).token_depth
    assert half is not None and torch.equal(half.counts, loaded.token_depth.counts[:20])
    loaded.token_depth = None
    loaded.save(tmp_path / "old.npz")
    old = ExitTrace.load(tmp_path / "old.npz")
    assert old.token_depth is None
    assert TraceJudge(old).single({"type": "final"})[0].results[0].layer_speedup == 1


def test_an_ablation_reports_the_speed_up_of_tokens_as_evaluate_does() -> None:
    model = build()
    trace = trace_model(model, make_batches(40, 8, seed=9), None, "test")
    variant = Variant("v", {"model": {"exit_policy": {"type": "final"}}, "validation_data_path": "test"}, "v")

    class Trained:
        def trace(self, source: str, batch_size: int, by_training_reader: bool = False) -> ExitTrace:
            return trace

        def trace_path(self, source: str, by_training_reader: bool = False) -> str:
            return f"{source}.npz"

        def gmacs(self, source: str, exits: torch.Tensor) -> dict[str, float]:
            return {}

    expected = hash_encoder(model).depth_of_tokens(tokens_of(ragged_batches(make_batches(40, 8, seed=9))))
    found = judge(variant, Trained())  # type: ignore[arg-type]
    assert found["layer_speedup"] == expected["layer_speedup"] > 1
