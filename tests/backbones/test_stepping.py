"""A backbone run block by block gives the hidden states of its full forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState, TransformerBackbone
from beem_plugin.backbones.families import FAMILIES

from .tiny_models import CONFIGS, LENGTHS, full_forward, make_batch, tiny


def assert_equal_at_tokens(state: BackboneState, expected: Tensor) -> None:
    mask = state.attention_mask
    torch.testing.assert_close(state.hidden_states[mask], expected[mask], rtol=1e-5, atol=1e-5)


def test_every_family_is_tested() -> None:
    assert {config["model_type"] for config in CONFIGS.values()} == set(FAMILIES)


@torch.no_grad()
def test_stepping_gives_every_hidden_state_of_the_full_forward(backbone: TransformerBackbone) -> None:
    batch = make_batch(backbone)
    expected = full_forward(backbone, batch)
    assert backbone.num_layers == len(expected) - 1
    assert backbone.hidden_size == expected[0].shape[-1]
    state = backbone.embed(batch)
    assert_equal_at_tokens(state, expected[0])
    for number in range(1, backbone.num_layers + 1):
        state = backbone.layer(number, state)
        assert_equal_at_tokens(state, expected[number])


@torch.no_grad()
@pytest.mark.parametrize("with_mask", [True, False])
def test_stepping_without_padding_equals_the_full_forward_everywhere(
    backbone: TransformerBackbone, with_mask: bool
) -> None:
    batch = make_batch(backbone, lengths=(9, 9))
    expected = full_forward(backbone, batch)
    if not with_mask:
        del batch["attention_mask"]
    state = backbone.embed(batch)
    assert state.attention_mask.all()
    for number in range(1, backbone.num_layers + 1):
        state = backbone.layer(number, state)
        torch.testing.assert_close(state.hidden_states, expected[number], rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "albert", "electra", "deberta-v2", "deberta-v2-convolution"])
def test_token_types_reach_the_embeddings(name: str) -> None:
    backbone = tiny(name).eval()
    batch = make_batch(backbone, token_types=True)
    assert_equal_at_tokens(backbone.embed(batch), full_forward(backbone, batch)[0])


@torch.no_grad()
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_reducing_samples_and_tokens_does_not_change_the_others(backbone: TransformerBackbone, depth: int) -> None:
    batch = make_batch(backbone)
    expected = full_forward(backbone, batch)
    state = backbone.embed(batch)
    for number in range(1, depth + 1):
        state = backbone.layer(number, state)
    kept = torch.tensor([3, 1])  # not in the order of the batch
    state = state.index_select(kept).narrow(max(LENGTHS[3], LENGTHS[1]))
    assert state.hidden_states.shape[:2] == (2, 5)
    for number in range(depth + 1, backbone.num_layers + 1):
        state = backbone.layer(number, state)
        assert_equal_at_tokens(state, expected[number][kept, :5])


@torch.no_grad()
def test_a_batch_without_padding_can_be_reduced_to_some_samples(backbone: TransformerBackbone) -> None:
    batch = make_batch(backbone, lengths=(9, 9, 9))
    expected = full_forward(backbone, batch)
    state = backbone.layer(1, backbone.embed(batch)).index_select(torch.tensor([2, 0]))
    assert_equal_at_tokens(backbone.layer(2, state), expected[2][[2, 0]])


@torch.no_grad()
def test_samples_of_different_batches_can_be_joined_at_the_same_depth(backbone: TransformerBackbone) -> None:
    batch = make_batch(backbone)
    expected = full_forward(backbone, batch)
    state = backbone.layer(1, backbone.embed(batch))
    short = state.index_select(torch.tensor([1])).narrow(5)
    hidden_states = torch.zeros(2, 12, backbone.hidden_size)
    hidden_states[0, :5], hidden_states[1] = short.hidden_states[0], state.hidden_states[0]
    state = backbone.make_state(hidden_states, batch["attention_mask"][[1, 0]])
    for number in range(2, backbone.num_layers + 1):
        state = backbone.layer(number, state)
        assert_equal_at_tokens(state, expected[number][[1, 0]])


@torch.no_grad()
def test_a_sample_of_padding_alone_stays_finite_and_changes_no_other(backbone: TransformerBackbone) -> None:
    batch = make_batch(backbone)
    expected = full_forward(backbone, batch)[backbone.num_layers]
    batch["attention_mask"][2] = 0
    state = backbone.embed(batch)
    for number in range(1, backbone.num_layers + 1):
        state = backbone.layer(number, state)
    assert state.hidden_states.isfinite().all()
    assert_equal_at_tokens(state, expected)


def test_gradients_flow_as_in_the_full_forward(name: str) -> None:
    backbone = tiny(name).eval()
    batch = make_batch(backbone)
    mask = batch["attention_mask"].bool()
    full_forward(backbone, batch)[-1][mask].square().mean().backward()
    expected = {key: value.grad.clone() for key, value in backbone.named_parameters() if value.grad is not None}
    backbone.zero_grad()
    state = backbone.embed(batch)
    for number in range(1, backbone.num_layers + 1):
        state = backbone.layer(number, state)
    state.hidden_states[mask].square().mean().backward()
    assert expected
    for key, value in backbone.named_parameters():
        if key in expected:
            assert value.grad is not None, key
            torch.testing.assert_close(value.grad, expected[key], rtol=1e-4, atol=1e-5, msg=key)


def test_dropout_is_that_of_the_full_forward(name: str) -> None:
    backbone = tiny(name).train()
    # Without padding, as both draw the same random numbers only for scores of the same shape and mask.
    batch = make_batch(backbone, lengths=(9, 9))
    torch.manual_seed(3)
    expected = full_forward(backbone, batch)[-1]
    torch.manual_seed(3)
    state = backbone.embed(batch)
    for number in range(1, backbone.num_layers + 1):
        state = backbone.layer(number, state)
    torch.testing.assert_close(state.hidden_states, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_bfloat16_autocast_and_weights_run(backbone: TransformerBackbone) -> None:
    batch = make_batch(backbone)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state = backbone.layer(1, backbone.embed(batch))
    assert state.hidden_states.isfinite().all()
    backbone.bfloat16()
    state = backbone.layer(1, backbone.embed(batch))
    assert state.hidden_states.dtype == torch.bfloat16
    assert state.hidden_states.isfinite().all()
