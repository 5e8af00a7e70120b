from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, SwinModel, ViTConfig, ViTModel

from beem_plugin.backbones.vision_encoder_decoder import CaptionBackbone, VisionEncoderDecoderBackbone
from beem_plugin.common.errors import ConfigurationError
from tests.tiny_captioner import GPT2, VIT

DECODER = {**GPT2, "vocab_size": 50}
ENCODERS: dict[str, dict[str, Any]] = {
    "vit": VIT,
    "deit": {**VIT, "model_type": "deit"},
    "beit": {**VIT, "model_type": "beit"},
    "dinov2": {
        "model_type": "dinov2",
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    },
    "swin": {
        "model_type": "swin",
        "image_size": 32,
        "patch_size": 4,
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "window_size": 4,
    },
}


def build(**keys: Any) -> VisionEncoderDecoderBackbone:
    torch.manual_seed(0)
    backbone = CaptionBackbone.from_params({"encoder": VIT, "decoder": DECODER, **keys})
    assert isinstance(backbone, VisionEncoderDecoderBackbone)
    return backbone.eval()


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("with_image", [True, False])
@torch.no_grad()
def test_stepped_decoder_gives_the_hidden_states_of_the_full_forward(name: str, with_image: bool) -> None:
    backbone = build(encoder=ENCODERS[name]).double()  # the activation is computed in other operations
    model, decoder = backbone.transformer_model, backbone.decoder
    size = ENCODERS[name]["image_size"]
    pixels, tokens = torch.randn(3, 3, size, size).double(), torch.randint(0, 50, (3, 7))
    states = backbone.encode_images(pixels)
    if with_image:
        full = model(pixel_values=pixels, decoder_input_ids=tokens, output_hidden_states=True)
        expected = full.decoder_hidden_states
    else:
        full = model.decoder(input_ids=tokens, output_hidden_states=True)
        expected = full.hidden_states
    hidden = decoder.embed(tokens)
    torch.testing.assert_close(hidden, expected[0])
    for number in range(1, decoder.num_layers + 1):
        query, key, value = decoder.project(number, hidden)
        keys, values = decoder.keys_values(number, hidden)
        torch.testing.assert_close(keys, key)
        torch.testing.assert_close(values, value)
        cross = decoder.cross_keys_values(number, states) if with_image else None
        hidden = decoder.block(number, hidden, query, (key, value), is_causal=True, cross=cross)
        if number < decoder.num_layers:  # transformers reports the last one after the final normalisation
            torch.testing.assert_close(hidden, expected[number])
    torch.testing.assert_close(decoder.final_norm(hidden), expected[-1])
    torch.testing.assert_close(functional.linear(decoder.final_norm(hidden), decoder.output_weight), full.logits)


def test_a_family_without_sdpa_is_built_with_plain_attention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # As Swin in older releases of transformers.
    monkeypatch.setattr(SwinModel, "_supports_sdpa", False)
    backbone = build(encoder=ENCODERS["swin"])
    encoder: Any = backbone.image_encoder
    assert encoder.config._attn_implementation == "eager"
    encoder.save_pretrained(tmp_path)
    again: Any = build(encoder=str(tmp_path))
    assert again.image_encoder.config._attn_implementation == "eager"
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            again.image_encoder(pixel_values=pixels).last_hidden_state,
            encoder(pixel_values=pixels).last_hidden_state,
        )


def test_every_trained_parameter_has_a_gradient() -> None:
    for name, config in ENCODERS.items():
        backbone = build(encoder=config)
        size = config["image_size"]
        states = backbone.encode_images(torch.randn(1, 3, size, size))
        states.sum().backward()
        encoder = backbone.transformer_model.encoder
        idle = [key for key, value in encoder.named_parameters() if value.requires_grad and value.grad is None]
        assert not idle, name


def test_a_saved_checkpoint_and_a_saved_config_are_loaded(tmp_path: Path) -> None:
    backbone = build()
    backbone.transformer_model.save_pretrained(tmp_path / "checkpoint")
    loaded = CaptionBackbone.from_params({"model_name": str(tmp_path / "checkpoint"), "vocab_size": 50})
    for name, value in backbone.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    (tmp_path / "config").mkdir()
    backbone.save_config(tmp_path / "config")
    rebuilt = CaptionBackbone.from_params({"model_name": str(tmp_path / "config"), "load_weights": False})
    rebuilt.load_state_dict(backbone.state_dict())
    weight = rebuilt.transformer_model.decoder  # type: ignore[attr-defined]
    assert weight.lm_head.weight is weight.transformer.wte.weight


def test_two_checkpoints_are_joined_with_new_cross_attention(tmp_path: Path) -> None:
    torch.manual_seed(3)
    encoder = ViTModel(ViTConfig(**{key: value for key, value in VIT.items() if key != "model_type"}))
    language_model = GPT2LMHeadModel(
        GPT2Config(**{key: value for key, value in DECODER.items() if key != "model_type"})
    )
    encoder.save_pretrained(tmp_path / "encoder")
    language_model.save_pretrained(tmp_path / "decoder")
    backbone = build(encoder=str(tmp_path / "encoder"), decoder=str(tmp_path / "decoder"), num_layers=4)
    assert backbone.num_layers == 4
    found = backbone.state_dict()
    for name, value in language_model.state_dict().items():
        if ".h.4." not in name and ".h.5." not in name:
            assert torch.equal(found[f"transformer_model.decoder.{name}"], value), name
    for name, value in encoder.state_dict().items():
        if "pooler" not in name:
            assert torch.equal(found[f"transformer_model.encoder.{name}"], value), name
    assert any("crossattention" in name for name in found)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"encoder": None}, "both 'encoder' and 'decoder'"),
        ({"encoder": {"model_type": "bert"}}, "allowed: beit, deit, dinov2, swin, vit"),
        ({"decoder": {"model_type": "bert"}}, "allowed: gpt2"),
        ({"num_layers": 7}, "num_layers: found 7, allowed: 1 to 6"),
        ({"vocab_size": 60}, "a vocabulary of 50 tokens, smaller than the tokenizer's 60"),
        ({"encoder": {**VIT, "hiden_size": 3}}, "hiden_size"),
    ],
)
def test_an_invalid_config_raises_an_error_that_names_the_key(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        build(**keys)


def test_a_caption_longer_than_the_positions_raises_an_error() -> None:
    with pytest.raises(ConfigurationError, match="the decoder has positions for 32"):
        build().decoder.embed(torch.zeros(1, 33, dtype=torch.int64))
