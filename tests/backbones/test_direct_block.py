"""Blocks computed without their modules say what the modules say, and the modules are called where they must be."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from beem_plugin.backbones import BackboneState, TransformerBackbone, block_kernels

from .tiny_models import make_batch, tiny

FAMILIES = ("bert", "roberta", "electra-projected", "mpnet", "distilbert")


def run(backbone: TransformerBackbone, batch: dict) -> BackboneState:
    state = backbone.embed(batch)
    for number in range(1, backbone.num_layers + 1):
        state = backbone.layer(number, state)
    return state


def by_modules(backbone: TransformerBackbone, batch: dict) -> Tensor:
    state = backbone.embed(batch)
    for number in range(1, backbone.num_layers + 1):
        state = state.advance(backbone.block(number, state))
    return state.hidden_states


def calls(backbone: TransformerBackbone, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the blocks whose modules are called from now on."""
    called: list[int] = []
    block = backbone.block

    def noted(number: int, state: BackboneState) -> Tensor:
        called.append(number)
        return block(number, state)

    monkeypatch.setattr(backbone, "block", noted)
    return called


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_modules_are_called_once_to_compare_and_never_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny(name).eval()
    called = calls(backbone, monkeypatch)
    padded, full = make_batch(backbone), make_batch(backbone, lengths=(7, 7))
    for batch in (padded, full):
        run(backbone, batch)
    assert called == [1, 2, 3, 4] * 2  # with a mask and without
    called.clear()
    for batch in (padded, full, make_batch(backbone, lengths=(3, 8))):
        state = run(backbone, batch)
        assert not called
        expected = by_modules(backbone, batch)
        called.clear()
        real = state.attention_mask
        torch.testing.assert_close(state.hidden_states[real], expected[real], rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_samples_taken_out_keep_their_own_mask() -> None:
    backbone = tiny("mpnet").eval()
    batch = make_batch(backbone)
    expected = by_modules(backbone, batch)
    state = backbone.layer(1, backbone.embed(batch))
    others = state.index_select(torch.tensor([1, 3])).narrow(5)
    for number in range(2, backbone.num_layers + 1):  # in turns: both states have the same `shared`
        state, others = backbone.layer(number, state), backbone.layer(number, others)
    torch.testing.assert_close(others.hidden_states[0], expected[1, :5], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(others.hidden_states[1, :3], expected[3, :3], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state.hidden_states[0], expected[0], rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_block_that_says_something_else_is_left_to_its_modules(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = tiny("bert").eval()
    batch = make_batch(backbone)
    expected = by_modules(backbone, batch)
    wrong = backbone.direct_block(2)
    assert wrong is not None
    wrong.activation = torch.nn.ReLU()
    backbone._direct_blocks[2] = wrong
    called = calls(backbone, monkeypatch)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            state = run(backbone, batch)
            real = state.attention_mask
            torch.testing.assert_close(state.hidden_states[real], expected[real], rtol=1e-5, atol=1e-5)
    assert called == [1, 2, 3, 4, 2] and len(caplog.records) == 1


@torch.inference_mode()
def test_hooks_on_all_modules_are_heard_and_another_forward_is_called() -> None:
    backbone = tiny("bert").eval()
    batch = make_batch(backbone)
    before = run(backbone, batch).hidden_states
    dense = backbone.transformer_model.encoder.layer[1].output.dense
    heard: list[int] = []
    for register in (register_module_forward_hook, register_module_forward_pre_hook):
        handle = register(lambda module, *_: heard.append(1) if module is dense else None)
        run(backbone, batch)
        handle.remove()
        run(backbone, batch)
    assert len(heard) == 2
    forward = dense.forward
    dense.forward = lambda inputs: 2 * forward(inputs)  # type: ignore[method-assign]
    assert not torch.allclose(run(backbone, batch).hidden_states, before)
    del dense.forward
    assert torch.equal(run(backbone, batch).hidden_states, before)


@torch.inference_mode()
def test_hooks_are_heard_and_replaced_modules_are_called() -> None:
    backbone = tiny("bert").eval()
    batch = make_batch(backbone)
    run(backbone, batch)
    heard = []
    layer = backbone.transformer_model.encoder.layer[1]
    handle = layer.output.dense.register_forward_hook(lambda *_: heard.append(2))
    run(backbone, batch)
    handle.remove()
    run(backbone, batch)
    assert heard == [2]

    class Doubled(torch.nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return 2 * super().forward(inputs)

    before = run(backbone, batch).hidden_states
    old = layer.output.dense
    layer.output.dense = Doubled(old.in_features, old.out_features)
    layer.output.dense.load_state_dict(old.state_dict())
    after = run(backbone, batch).hidden_states
    real = batch["attention_mask"].bool()
    assert not torch.allclose(after[real], before[real])
    torch.testing.assert_close(after[real], by_modules(backbone, batch)[real], rtol=1e-5, atol=1e-5)


def test_training_gradients_autocast_and_traces_call_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny("mpnet").eval()
    batch = make_batch(backbone)
    with torch.inference_mode():
        run(backbone, batch)
    called = calls(backbone, monkeypatch)
    run(backbone, batch)
    assert called == [1, 2, 3, 4]
    with torch.inference_mode():
        with torch.autocast("cpu", torch.bfloat16):
            run(backbone, batch)
        assert called == [1, 2, 3, 4] * 2
        run(backbone.train(), batch)
        assert called == [1, 2, 3, 4] * 3
        backbone.eval()
        run(backbone, batch)
        assert called == [1, 2, 3, 4] * 3


@torch.inference_mode()
def test_a_copy_is_a_copy_and_new_weights_count() -> None:
    backbone = tiny("bert").eval()
    batch = make_batch(backbone)
    before = run(backbone, batch).hidden_states
    copied = copy.deepcopy(backbone)
    for parameter in copied.parameters():
        parameter.mul_(1.5)
    real = batch["attention_mask"].bool()
    assert torch.equal(run(backbone, batch).hidden_states, before)
    after = run(copied, batch).hidden_states
    assert not torch.allclose(after[real], before[real])
    torch.testing.assert_close(after[real], by_modules(copied, batch)[real], rtol=1e-5, atol=1e-5)
    half = copied.double()
    torch.testing.assert_close(
        run(half, batch).hidden_states[real], by_modules(half, batch)[real], rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("name", ["albert", "albert-groups", "albert-inner"])
@torch.inference_mode()
def test_blocks_that_share_their_weights_are_compared_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny(name).eval()
    batch = make_batch(backbone)
    expected = by_modules(backbone, batch)
    called = calls(backbone, monkeypatch)
    state = run(backbone, batch)
    different = {id(backbone._layer(number)) for number in range(1, backbone.num_layers + 1)}
    assert len(called) == len(different) < backbone.num_layers
    real = state.attention_mask
    torch.testing.assert_close(state.hidden_states[real], expected[real], rtol=1e-5, atol=1e-5)


def test_decoders_and_others_have_none() -> None:
    assert tiny("bert", config_overrides={"is_decoder": True}).direct_block(1) is None
    assert tiny("modernbert").direct_block(1) is None and tiny("deberta-v2").direct_block(1) is None


@torch.no_grad()
def test_a_kept_bias_of_positions_serves_fewer_tokens_and_follows_its_weights() -> None:
    backbone = tiny("mpnet").eval()
    short, long = make_batch(backbone, lengths=(4, 3)), make_batch(backbone, lengths=(20, 11))
    table = backbone.transformer_model.encoder.relative_attention_bias.weight
    for batch in (short, long, short):
        kept = backbone.embed(batch).shared["position_bias"]
        length = batch["input_ids"].shape[1]
        assert torch.equal(kept, backbone._position_bias(length, kept.device))
    table.mul_(3)
    after = backbone.embed(short).shared["position_bias"]
    assert torch.equal(after, backbone._position_bias(4, after.device))


@pytest.mark.parametrize("name", [*FAMILIES, "albert"])
@torch.inference_mode()
def test_modules_get_their_mask_where_kernels_were_expected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny(name).eval()
    batch = make_batch(backbone)
    expected = by_modules(backbone, batch)
    run(backbone, batch)
    with monkeypatch.context() as patched:
        patched.setattr(block_kernels, "can_run", lambda *_: True)
        state = backbone.embed(batch)
    assert state.batched["key_mask"].dtype == torch.bool
    for number in range(1, backbone.num_layers + 1):
        directly = backbone.layer(number, state).hidden_states
        state = state.advance(backbone.block(number, state))
        real = state.attention_mask
        torch.testing.assert_close(directly[real], state.hidden_states[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state.hidden_states[real], expected[real], rtol=1e-5, atol=1e-5)
