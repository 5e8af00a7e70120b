"""A snapshot for inference computes what the modules of its backbone compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from beem_plugin.backbones import TransformerBackbone, inference
from beem_plugin.backbones.inference import InferenceBackbone, inference_backbone
from beem_plugin.backbones.post_norm import FAMILIES
from beem_plugin.kernels.packed import Packed

from .tiny_models import CONFIGS, build, full_forward, make_batch, tiny

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
POST_NORM = [name for name, config in CONFIGS.items() if config["model_type"] in FAMILIES]
LENGTHS = (5, 3, 1)
# `full_forward` leaves transformers' hooks on the modules: snapshots are taken before it.
pytest.importorskip("triton")


def snapshot(backbone: TransformerBackbone, use_kernels: bool | None = None) -> InferenceBackbone:
    made = inference_backbone(backbone, use_kernels)
    assert made is not None
    return made


def assert_equal_at_tokens(found: Tensor, expected: Tensor, mask: Tensor, tolerance: float = 1e-5) -> None:
    real = mask.bool()
    torch.testing.assert_close(found[real], expected[real], rtol=tolerance, atol=tolerance)


def typed(name: str, lengths: tuple[int, ...] = LENGTHS) -> tuple[TransformerBackbone, dict[str, Tensor]]:
    """A tiny model with two token types where the family has any, and a batch with them and an inner padding id."""
    config = dict(CONFIGS[name])
    if config["model_type"] not in ("distilbert", "mpnet"):
        config["type_vocab_size"] = 2
    torch.manual_seed(2)
    backbone = build(config=config).eval().to(DEVICE)
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    batch = {key: value.to(DEVICE) for key, value in make_batch(backbone, lengths).items()}
    batch["input_ids"][0, 1] = backbone.config.pad_token_id  # a real token with the padding's id
    if "type_vocab_size" in config:
        batch["token_type_ids"] = (torch.arange(max(lengths), device=DEVICE) > 1).long().repeat(len(lengths), 1)
    return backbone, batch


@pytest.mark.parametrize("name", POST_NORM)
@pytest.mark.parametrize("use_kernels", [False, True])
@torch.inference_mode()
def test_hidden_states_equal_the_full_forward(name: str, use_kernels: bool) -> None:
    backbone, padded = typed(name)
    without_types = {key: value for key, value in padded.items() if key != "token_type_ids"}
    full = {key: value[:2, :3] for key, value in padded.items() if key != "attention_mask"}
    stepped = snapshot(backbone, use_kernels)
    # The interpreter takes milliseconds for each row of a norm.
    depths = {False: (4, 4, 4), True: (2, 0, 1)}[use_kernels]
    for batch, depth in zip((padded, without_types, full), depths):
        expected = full_forward(backbone, batch)
        state = stepped.embed(batch)
        mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
        assert_equal_at_tokens(state.hidden_states, expected[0], mask)
        for number in range(1, depth + 1):
            state = stepped.layer(number, state)
            assert_equal_at_tokens(state.hidden_states, expected[number], mask)


@pytest.mark.parametrize("name", POST_NORM)
@torch.inference_mode()
def test_packed_samples_equal_padded_ones(name: str) -> None:
    lengths = (2, 3, 17)
    backbone, batch = typed(name, lengths)
    stepped, packed = snapshot(backbone, use_kernels=True), Packed.of(np.array(lengths), DEVICE)
    expected = full_forward(backbone, batch)
    mask = batch["attention_mask"].bool()
    tokens = {key: value[mask] for key, value in batch.items() if key != "attention_mask"}
    state = stepped.embed_packed(tokens, packed)
    torch.testing.assert_close(state.hidden_states[0], expected[0][mask], rtol=1e-5, atol=1e-5)
    state = stepped.layer(1, state)
    torch.testing.assert_close(state.hidden_states[0], expected[1][mask], rtol=1e-5, atol=1e-5)
    # The first and the last sample continue.
    kept = torch.tensor([0, 2], device=DEVICE)
    reduced = Packed.of(np.array([2, 17]), DEVICE)
    hidden_states = state.hidden_states.index_select(1, reduced.indices(packed.starts[kept]))
    state = stepped.layer(2, stepped.packed_state(hidden_states, reduced))
    torch.testing.assert_close(state.hidden_states[0], expected[2][kept][mask[kept]], rtol=1e-5, atol=1e-5)


def test_packing_needs_kernels_and_short_samples() -> None:
    backbone = tiny("bert").eval()
    assert snapshot(backbone, use_kernels=True).can_pack(128)
    assert not snapshot(backbone, use_kernels=True).can_pack(129)
    assert not snapshot(backbone, use_kernels=False).can_pack(1)


@pytest.mark.parametrize("name", ["bert", "mpnet", "albert-groups"])
@pytest.mark.parametrize("use_kernels", [False, True])
@torch.inference_mode()
def test_states_can_be_reduced_and_joined(name: str, use_kernels: bool) -> None:
    backbone, batch = typed(name)
    stepped = snapshot(backbone, use_kernels)
    expected = full_forward(backbone, batch)
    state = stepped.layer(1, stepped.embed(batch))
    kept = torch.tensor([2, 1], device=DEVICE)
    reduced = state.index_select(kept).narrow(3)
    mask = batch["attention_mask"][kept, :3]
    assert_equal_at_tokens(stepped.layer(2, reduced).hidden_states, expected[2][kept, :3], mask)
    joined = stepped.make_state(state.hidden_states.flip(0), batch["attention_mask"].flip(0))
    assert_equal_at_tokens(stepped.layer(2, joined).hidden_states, expected[2].flip(0), joined.attention_mask)


@pytest.mark.parametrize("use_kernels", [False, True])
@torch.inference_mode()
def test_long_inputs_use_torch_attention(use_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MAX_TOKENS", 8)
    backbone, batch = typed("mpnet", (9, 3))
    stepped = snapshot(backbone, use_kernels)
    expected = full_forward(backbone, batch)
    state = stepped.layer(1, stepped.embed(batch))
    assert_equal_at_tokens(state.hidden_states, expected[1], batch["attention_mask"])
    # Reduced to the short sample, the kernel takes over.
    state = stepped.layer(2, state.index_select(torch.tensor([1], device=DEVICE)).narrow(3))
    torch.testing.assert_close(state.hidden_states, expected[2][1:, :3], rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_position_bias_of_each_sample() -> None:
    backbone, batch = typed("mpnet", (6, 6))
    bias = torch.randn(2, 2, 6, 6, device=DEVICE)
    found = []
    for use_kernels in (False, True):
        stepped = snapshot(backbone, use_kernels)
        state = stepped.embed(batch)
        state.shared["position_bias"] = bias
        found.append(stepped.layer(1, state).hidden_states)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_half_precision_is_near_the_modules() -> None:
    backbone, batch = typed("roberta")
    backbone.half()
    stepped = snapshot(backbone, use_kernels=True)
    state = stepped.layer(1, stepped.embed(batch))
    assert state.hidden_states.dtype == torch.float16
    assert_equal_at_tokens(state.hidden_states, full_forward(backbone, batch)[1], batch["attention_mask"], 2e-2)


def replace_dense(backbone: TransformerBackbone) -> None:
    class Doubled(torch.nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return 2 * super().forward(inputs)

    backbone.transformer_model.encoder.layer[1].output.dense = Doubled(48, 32)


def add_module(backbone: TransformerBackbone) -> None:
    backbone.transformer_model.encoder.layer[1].adapter = torch.nn.Linear(32, 32)


def add_hook(backbone: TransformerBackbone) -> None:
    backbone.transformer_model.encoder.layer[1].output.dense.register_forward_hook(lambda *_: None)


def replace_forward(backbone: TransformerBackbone) -> None:
    module = backbone.transformer_model.encoder.layer[1]
    module.forward = module.forward


def replace_embeddings(backbone: TransformerBackbone) -> None:
    backbone.transformer_model.embeddings.word_embeddings = torch.nn.Embedding(60, 32, max_norm=1.0)


def cast_a_norm(backbone: TransformerBackbone) -> None:
    backbone.transformer_model.encoder.layer[1].output.LayerNorm.double()


def replace_a_method(backbone: TransformerBackbone) -> None:
    backbone.layer = backbone.layer  # type: ignore[method-assign]


def train(backbone: TransformerBackbone) -> None:
    backbone.train()


CHANGES: list[Callable[[TransformerBackbone], Any]] = [
    replace_dense,
    add_module,
    add_hook,
    replace_forward,
    replace_embeddings,
    cast_a_norm,
    replace_a_method,
    train,
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_altered_backbone_has_no_snapshot(change: Callable[[TransformerBackbone], Any]) -> None:
    backbone = tiny("bert").eval()
    assert inference_backbone(backbone) is not None
    change(backbone)
    assert inference_backbone(backbone) is None


def test_with_a_global_hook_there_is_no_snapshot() -> None:
    backbone = tiny("bert").eval()
    handle = register_module_forward_hook(lambda *_: None)
    assert inference_backbone(backbone) is None
    handle.remove()
    assert inference_backbone(backbone) is not None


def test_other_families_subclasses_and_decoders_have_no_snapshot() -> None:
    assert inference_backbone(tiny("modernbert").eval()) is None
    assert inference_backbone(tiny("deberta-v2").eval()) is None
    assert inference_backbone(tiny("bert", config_overrides={"is_decoder": True}).eval()) is None
    bert = tiny("bert").eval()
    assert inference_backbone(type("Mine", (type(bert),), {})(bert.transformer_model).eval()) is None


@torch.inference_mode()
def test_a_snapshot_is_independent_of_a_copy() -> None:
    backbone, batch = typed("bert")
    stepped = snapshot(backbone)
    before = stepped.layer(1, stepped.embed(batch)).hidden_states
    backbone.double()
    assert torch.equal(stepped.layer(1, stepped.embed(batch)).hidden_states, before)
