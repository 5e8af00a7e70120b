"""Exits that read outputs of earlier exits: decisions of all engines equal the replay of their trace."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.calibration.replay import ExitDecisions, replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.archive_files import save_state
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data import Vocabulary
from beem_plugin.execution import Compaction, DepthPools, Engine, Single
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.execution.metering.macs import count_macs
from beem_plugin.execution.onnx.export import export_network
from beem_plugin.execution.precision import cast_network
from beem_plugin.exits.policies import Beem, Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import Model, MultiExitClassifier
from beem_plugin.models.encoder_exits import MEMORY, NEW_MEMORY
from beem_plugin.models.multi_exit_trace import trace_model
from beem_plugin.models.saved_weights import load_weights
from tests.backbones.tiny_models import CONFIGS
from tests.execution.captured_worlds import GraphsOnHost
from tests.execution.worlds import make_batches, same
from tests.ragged import ragged_batches

SIGNALS = ["similarity", "predicted_error", {"type": "halt", "num_hidden_layers": 1}, "gate"]
HEADS: dict[str, Any] = {
    "pooled": "pooled",
    "attention": {"type": "attention", "size": 8},
    "cascaded": "cascaded",
    "layer norm": {"type": "cascaded", "normalization": "layer_norm"},
    "past_future": "past_future",
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FAMILIES = ["bert", "albert", "mpnet", "modernbert-local", "deberta-v2-convolution"]
ENGINES: dict[str, Engine] = {
    "single": Single(),
    "compaction": Compaction(),
    "compaction, every second exit": Compaction(check_every=2),
    "compaction, every third exit": Compaction(check_every=3, min_leaving=0.2),
    "depth_pools": DepthPools(),
    "depth_pools, small": DepthPools(tokens_per_chunk=24, window_tokens=90, min_leaving=0.0),
}


def build(family: str = "bert", seed: int = 0, **encoder: Any) -> MultiExitClassifier:
    """A random model whose exits differ enough that samples leave at all of them."""
    torch.manual_seed(seed)
    backbone = {"config": dict(CONFIGS[family]), "config_overrides": NO_DROPOUT if family == "bert" else {}}
    config = {"type": "multi_exit_classifier", "encoder": {"backbone": backbone, "dropout": 0.0, **encoder}}
    model = Model.from_params(config, vocab=Vocabulary(["a", "b", "c"]), metric="accuracy", is_regression=False)
    assert isinstance(model, MultiExitClassifier)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
        for head in model.encoder.exits:
            if not encoder.get("share_classifier"):
                head.classifier.weight.mul_(8)  # type: ignore[operator, union-attr]
        if "gate" in model.encoder.signal_modules:
            for gate in model.encoder.signal_modules["gate"].gates:  # type: ignore[union-attr]
                gate.bias.fill_(-1.5)  # something is left over for later exits
                gate.weight.mul_(0.2)
    return model.eval()


def policies_for(trace: ExitTrace) -> dict[str, ExitPolicy]:
    """One rule for each signal of the trace, and one for the logits: about a third leaves at each exit."""
    policies = {}
    for name in ("margin", *trace.signals):
        config = {"type": {"halt": "halting"}.get(name, name)}
        probe = ExitPolicy.from_params({**config, "thresholds": "never"})
        probe.bind(trace.exit_layers, trace.num_labels)
        state, thresholds = probe.start(len(trace), trace.num_exits), []
        for exit_number in range(1, trace.num_exits):
            _, state = probe.step(exit_number, trace.exit_signals(exit_number), state)
            share = 0.33 if name == "predicted_error" else 0.67
            # Between two samples, so that rounding cannot move one across.
            ranked = probe.score(state).sort().values  # type: ignore[union-attr]
            place = min(max(int(share * len(ranked)), 1), len(ranked) - 1)
            thresholds.append(float(ranked[place - 1 : place + 1].mean()))
        policies[name] = ExitPolicy.from_params({**config, "thresholds": thresholds})
    return policies


class Expected(NamedTuple):
    """A network, inputs, and what each rule decides about them on a trace."""

    model: MultiExitClassifier
    batches: list[dict[str, Tensor]]
    rules: dict[str, tuple[ExitPolicy, ExitDecisions]]

    @classmethod
    def of(cls, model: MultiExitClassifier, count: int = 23) -> Expected:
        batches = make_batches(count, 7)
        trace = trace_model(model, batches, None, "test")
        return cls(model, batches, {name: (rule, replay(rule, trace)) for name, rule in policies_for(trace).items()})


def check(expected: Expected, engine: Engine) -> dict[str, list[int]]:
    """Every rule on `engine` equals the rule on the trace. Returns where samples left."""
    exits = {}
    count = sum(len(batch["index"]) for batch in expected.batches)
    for name, (policy, decisions) in expected.rules.items():
        batches = ragged_batches(expected.batches)
        index, found = gather_decisions(engine.run(expected.model.encoder, policy, batches), 3, count)
        assert index.tolist() == list(range(count)), name
        same(found, decisions)
        exits[name] = sorted(set(decisions.exits.tolist()))
    return exits


@functools.cache
def expected_with(head: str) -> Expected:
    return Expected.of(build(head=HEADS[head], share_pooler=False, signals=SIGNALS))


@functools.cache
def expected_of(family: str) -> list[Expected]:
    encoders: list[dict[str, Any]] = [
        {"head": "past_future", "signals": SIGNALS},
        {"head": "cascaded", "signals": ["similarity"], "exit_layers": [1, 3, 4]},
    ]
    return [Expected.of(build(family, **encoder)) for encoder in encoders]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
@pytest.mark.parametrize("head", HEADS)
def test_every_head_and_signal_under_every_engine(engine: Engine, head: str) -> None:
    exits = check(expected_with(head), engine)
    assert set(exits) == {"margin", "similarity", "predicted_error", "halt", "gate"}
    assert all(len(places) > 2 for places in exits.values()), f"they leave at too few exits: {exits}"


@pytest.mark.parametrize("engine", ["compaction, every second exit", "depth_pools, small"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_backbones(engine: str, family: str) -> None:
    for expected in expected_of(family):
        check(expected, ENGINES[engine])


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal if isinstance(signal, str) else signal["type"])
def test_one_signal_alone(signal: Any) -> None:
    expected = Expected.of(build(signals=[signal], pooler={"type": "bert_pooler", "pooling": "mean"}), count=9)
    for engine in ENGINES.values():
        check(expected, engine)


def test_shared_classifiers_and_the_mixed_pooler() -> None:
    expected = Expected.of(build(share_classifier=True, signals=["halt"], pooler="mixed_pooler"), count=9)
    for engine in ENGINES.values():
        check(expected, engine)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head", HEADS)
def test_half_precision_layers(head: str, dtype: str) -> None:
    model = build(head=HEADS[head], share_pooler=False, signals=SIGNALS)
    batches = make_batches(8, 4)
    whole = trace_model(model, batches, None, "test")
    cast_network(model.encoder, dtype)
    half = trace_model(model, batches, None, "test")
    for name, values in half.signals.items():
        torch.testing.assert_close(values, whole.signals[name], atol=0.25, rtol=0.1)
    for engine in (Single(), Compaction(), DepthPools(tokens_per_chunk=24, min_leaving=0.0)):
        _, found = gather_decisions(engine.run(model.encoder, Beem([0.1] * 4, 0.1), ragged_batches(batches)), 3, 8)
        assert bool(torch.isfinite(found.log_probabilities).all())
    inputs = {name: batches[0][name] for name in ("input_ids", "attention_mask")}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        build(head=HEADS[head], signals=SIGNALS).train().encoder.outputs(inputs).logits.sum().backward()


def test_a_rule_can_be_fitted_on_a_trace_by_gradients() -> None:
    trace = trace_model(build(signals=["gate"]), make_batches(4, 2), None, "test")
    assert not trace.logits.is_inference() and not trace.signals["gate"].is_inference()


def test_what_exit_signals_noted_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = build(head="past_future", signals=["halt"]).encoder
    calls = []
    plain = type(encoder).exit_output

    def counted(self: Any, exit_number: int, state: BackboneState) -> Any:
        calls.append(exit_number)
        return plain(self, exit_number, state)

    monkeypatch.setattr(type(encoder), "exit_output", counted)
    policy = Final()
    list(Compaction().run(encoder, policy, ragged_batches(make_batches(3, 3))))
    assert calls == [1, 2, 3, 4]
    calls.clear()
    state = encoder.embed({"input_ids": torch.tensor([[5, 6]])})
    for exit_number in (1, 2, 3, 4):  # memory is stored even if no exit is evaluated
        state = encoder.advance(exit_number, state)
    assert calls == [1, 2, 3]
    assert MEMORY + "past" in state.batched and not any(name.startswith(NEW_MEMORY) for name in state.batched)


def test_memory_is_empty_if_no_exit_reads_it() -> None:
    encoder = build(signals=["predicted_error", "gate"], head={"type": "attention", "size": 8}).encoder
    assert not encoder.carries_memory and encoder.obstacle is None
    state = encoder.advance(1, encoder.embed({"input_ids": torch.tensor([[5, 6]])}))
    encoder.exit_signals(1, state)
    state = encoder.advance(2, state)
    assert not [name for name in state.batched if name.startswith((MEMORY, NEW_MEMORY))]


@pytest.mark.parametrize("over", ["tokens", "first"])
def test_similarity_against_numpy_whatever_else_is_in_the_batch(over: str) -> None:
    model = build(signals=[{"type": "similarity", "over": over}], exit_layers=[1, 3, 4])
    (batch,) = make_batches(6, 6, shuffled=False)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    transformer = model.encoder.backbone.transformer_model
    with torch.inference_mode():
        hidden = transformer(**inputs, output_hidden_states=True).hidden_states  # type: ignore[operator]
        found = model.encoder.outputs(inputs).signals["similarity"]
        for row in range(6):
            real = int(batch["attention_mask"][row].sum())
            for number, layer in enumerate([1, 3, 4]):
                kept = slice(0, real) if over == "tokens" else slice(0, 1)
                after, before = (hidden[at][row, kept].numpy().ravel().astype(float) for at in (layer, layer - 1))
                expected = after @ before / (np.linalg.norm(after) * np.linalg.norm(before))
                assert float(found[row, number]) == pytest.approx(expected, abs=1e-5)
            alone = {name: value[row : row + 1, :real] for name, value in inputs.items()}
            torch.testing.assert_close(model.encoder.outputs(alone).signals["similarity"][0], found[row])


def test_halting_sees_this_exit_and_the_one_before_and_zeros_before_exit_1() -> None:
    encoder = build(signals=["halt"]).encoder
    module = encoder.signal_modules["halt"]
    outputs = encoder.outputs({"input_ids": torch.tensor([[5, 6, 7], [8, 9, 10]])})
    before = torch.zeros_like(outputs.pooled[0])
    for number, pooled in enumerate(outputs.pooled):
        expected = module.layers(torch.cat([pooled, before], -1)).squeeze(-1).sigmoid()  # type: ignore[operator]
        torch.testing.assert_close(outputs.signals["halt"][:, number], expected)
        before = pooled


def test_gradient_equilibrium_by_hand() -> None:
    """Block i gets (1 / (L - i + 1)) (its exit's gradient + (L - i) times what comes from above)."""
    models = {kind: build(gradient_equilibrium=kind, share_pooler=False).train() for kind in (False, True)}
    batch = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 10]])}
    plain, scaled = (models[kind].encoder for kind in (False, True))

    # What each exit's loss alone gives to each block.
    blocks = 4
    alone: dict[tuple[int, int], Tensor] = {}
    for exit_number in range(1, blocks + 1):
        plain.zero_grad()
        plain.outputs(batch).logits[:, exit_number - 1].square().sum().backward()
        for block in range(1, exit_number + 1):
            alone[exit_number, block] = block_gradient(plain, block)
    scaled.zero_grad()
    scaled.outputs(batch).logits.square().sum().backward()
    for block in range(1, blocks + 1):
        expected = torch.zeros_like(alone[blocks, block])
        for exit_number in range(block, blocks + 1):
            # From exit e down to block b: 1 / (L - e + 1) where it enters, then (L - i) / (L - i + 1) at each exit i
            # that it passes; the product is 1 / (L - b + 1) for every e: the mean.
            factor = 1 / (blocks - exit_number + 1)
            for passed in range(block, exit_number):
                factor *= (blocks - passed) / (blocks - passed + 1)
            assert factor == pytest.approx(1 / (blocks - block + 1))
            expected += factor * alone[exit_number, block]
        torch.testing.assert_close(block_gradient(scaled, block), expected, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(scaled.outputs(batch).logits, plain.outputs(batch).logits)


def block_gradient(encoder: Any, block: int) -> Tensor:
    return encoder.backbone.transformer_model.encoder.layer[block - 1].output.dense.weight.grad.clone()


def test_gradual_unfreezing_stops_the_gradient_with_falling_probability() -> None:
    model = build(gradual_unfreezing=2, share_pooler=False).train()
    encoder = model.encoder
    batch = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 10]])}

    def moved(exit_number: int) -> list[bool]:
        encoder.zero_grad()
        encoder.outputs(batch).logits[:, exit_number - 1].square().sum().backward()
        weights = [layer.output.dense.weight for layer in encoder.backbone.transformer_model.encoder.layer]  # type: ignore[union-attr, operator]
        return [weight.grad is not None and bool(weight.grad.any()) for weight in weights]

    model.start_step(0, 10)  # with certainty
    assert moved(4) == [False, False, True, True]
    assert moved(2) == [True, True, False, False], "exits up to there train their layers"
    model.start_step(10, 10)  # never
    assert moved(4) == [True] * 4
    drawn = []
    for step in range(400):
        model.start_step(step, 400)
        drawn.append(encoder._is_frozen)
    assert 170 < sum(drawn) < 230 and sum(drawn[:100]) > 75 and sum(drawn[-100:]) < 25
    model.start_step(0, 10)
    torch.testing.assert_close(encoder.outputs(batch).logits, build(share_pooler=False).encoder.outputs(batch).logits)


@pytest.mark.parametrize("layer", [0, 4])
def test_gradual_unfreezing_needs_a_layer_above(layer: int) -> None:
    with pytest.raises(ConfigurationError, match="gradual_unfreezing"):
        build(gradual_unfreezing=layer)


@pytest.mark.parametrize("head", ["cascaded", "past_future"])
def test_weights_come_back_bit_by_bit(head: str, tmp_path: Path) -> None:
    def new(seed: int) -> MultiExitClassifier:
        return build(seed=seed, head=head, signals=SIGNALS, share_pooler=head == "cascaded")

    model, other = new(0), new(1)
    path = tmp_path / "weights.safetensors"
    save_state(model.state_dict(), path)
    load_weights(other, path)
    assert len(list(other.parameters())) == len(list(model.parameters()))
    for (name, value), again in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(value, again), name
    inputs = {"input_ids": torch.tensor([[5, 6, 7]])}
    outputs, again_outputs = model.encoder.outputs(inputs), other.encoder.outputs(inputs)
    assert torch.equal(outputs.logits, again_outputs.logits)
    for name, signal in outputs.signals.items():
        assert torch.equal(signal, again_outputs.signals[name])


def test_macs_count_heads_and_signals_once() -> None:
    block = [0.0, 4.0 * 32**2 + 2 * 32 * 48, 2.0 * 32]
    plain = count_macs(build(head="past_future", signals=["similarity", "predicted_error"]).encoder)
    torch.testing.assert_close(plain.layers, torch.tensor([block] * 4).double())
    pooler, classifier, signal = 32 * 32, 32 * 3, 32
    expected = [pooler + later * 32 * 32 + (64 if later else 0) + classifier + signal for later in (3, 2, 1, 0)]
    torch.testing.assert_close(plain.heads, torch.tensor([[value, 0.0, 0.0] for value in expected]).double())
    halt = count_macs(build(signals=["halt", "gate"]).encoder)
    perceptron = 3 * 64 * 64 + 64
    torch.testing.assert_close(halt.heads[:, 0], torch.full((4,), 32.0 * 32 + 32 * 3 + perceptron + 4).double())
    attention = count_macs(build(head={"type": "attention", "size": 8}).encoder)
    # A token costs the reduction, a key, a value and its part of the attention; the rest is paid once.
    torch.testing.assert_close(
        attention.heads[0], torch.tensor([3 * 64 + 8 * 3, 32 * 8 + 2 * 64 + 2 * 8, 0], dtype=torch.float64)
    )


@pytest.mark.parametrize("head", HEADS)
@torch.inference_mode()
def test_captured_graphs_keep_the_order_in_which_exits_look_back(head: str) -> None:
    model = build(head=HEADS[head], share_pooler=False, signals=SIGNALS)
    batches = make_batches(9, 9, shuffled=False)
    trace = trace_model(model, batches, None, "test")
    engine = GraphsOnHost(length_bucket=4)
    for policy in policies_for(trace).values():
        _, found = gather_decisions(engine.run(model.encoder, policy, ragged_batches(batches)), 3, 9)
        same(found, replay(policy, trace))


def test_exits_that_look_back_are_not_exported(tmp_path: Path) -> None:
    encoder = build(head="cascaded", signals=["similarity", "gate"]).encoder
    with pytest.raises(ConfigurationError, match="CascadedHead, similarity"):
        export_network(encoder, Beem(thresholds=0.1, weights=[0.1] * 4), tmp_path)
