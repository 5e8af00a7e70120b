"""Images that leave the image encoder early, against transformers' own hidden states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.backbones.image_blocks import image_stages
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.decoding.image_exit import ImageExit, image_block_macs, image_macs
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.models.caption_trace import trace_captions
from tests.tiny_captioner import batch, captioner, images, policy

SHAPE = {"image_size": 16, "patch_size": 4, "intermediate_size": 32, "hidden_size": 24, "num_attention_heads": 2}
PLAIN = {**SHAPE, "num_hidden_layers": 5, "initializer_range": 0.1}
ENCODERS: dict[str, dict[str, Any]] = {
    "vit": PLAIN,
    "deit": PLAIN,
    "beit": {**PLAIN, "use_relative_position_bias": True},
    "dinov2": {key: value for key, value in PLAIN.items() if key != "intermediate_size"},
    "swin": {
        "image_size": 16,
        "patch_size": 2,
        "embed_dim": 12,
        "depths": [1, 4, 3],
        "num_heads": [2, 2, 2],
        "window_size": 2,
        "initializer_range": 0.1,
    },
}
RULE: dict[str, Any] = {"type": "fixed_exit", "exit": 3}


def model_with(kind: str) -> MultiExitCaptioner:
    decoder = {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 32}
    backbone = {"encoder": {"model_type": kind, **ENCODERS[kind]}, "decoder": decoder}
    return captioner(decoder={"backbone": backbone}).double()


def similarities(model: MultiExitCaptioner, pixels: Tensor) -> list[Tensor]:
    """For each block `(images,)`, from an encoder that nobody leaves."""
    found: list[Tensor] = []

    def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        before = args[0] if args else kwargs["hidden_states"]
        after = output[0] if isinstance(output, tuple) else output
        found.append(functional.cosine_similarity(before.flatten(1), after.flatten(1), dim=-1))

    encoder = model.decoder.backbone.image_encoder
    handles = [
        block.register_forward_hook(hook, with_kwargs=True) for stage in image_stages(encoder) for block in stage
    ]
    with torch.no_grad():
        model.decoder.backbone.encode_images(pixels)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("kind", ENCODERS)
@torch.no_grad()
def test_stages_are_found_and_without_exits_nothing_changes(kind: str) -> None:
    model, pixels = model_with(kind), images(3).double()
    backbone = model.decoder.backbone
    stages = [len(stage) for stage in image_stages(backbone.image_encoder)]
    assert stages == ENCODERS[kind].get("depths", [5])
    encoded = ImageExit(2.0).encode(backbone, pixels)
    torch.testing.assert_close(encoded.states, backbone.encode_images(pixels), rtol=0, atol=0)
    assert encoded.blocks == [sum(stages)] * 3 and encoded.num_blocks == sum(stages)
    assert encoded.macs == pytest.approx(3 * image_macs(model.decoder.backbone, (3, 16, 16)))
    assert "forward" not in vars(image_stages(backbone.image_encoder)[0][0])


@pytest.mark.parametrize("kind", ENCODERS)
@torch.no_grad()
def test_each_image_leaves_behind_the_first_block_that_changes_it_little(kind: str) -> None:
    model, pixels = model_with(kind), images(8).double()
    backbone = model.decoder.backbone
    # The first stage in which anybody can leave: half of the images have a block there that passes.
    blocks = slice(1, 4) if kind == "swin" else slice(0, 4)
    highest = torch.stack(similarities(model, pixels)[blocks]).amax(0).sort().values
    threshold = float(highest[3:5].mean())
    together = ImageExit(threshold).encode(backbone, pixels)
    assert together.blocks is not None and len(set(together.blocks)) > 1
    for row, image in enumerate(pixels):
        alone = ImageExit(threshold).encode(backbone, image.unsqueeze(0))
        assert alone.blocks == [together.blocks[row]]
        torch.testing.assert_close(alone.states[0], together.states[row])
    if kind == "swin":
        return
    encoder: Any = backbone.image_encoder
    full = encoder(pixels, output_hidden_states=True).hidden_states
    expected = []
    for row in range(len(pixels)):
        for number in range(1, 6):
            before, after = full[number - 1][row].flatten(), full[number][row].flatten()
            if float(functional.cosine_similarity(before, after, dim=0)) > threshold:
                break
        expected.append(number)
        norm = getattr(encoder, "layernorm", torch.nn.Identity())
        state = norm(full[number][row])
        projection = backbone.transformer_model.enc_to_dec_proj  # type: ignore[union-attr]
        torch.testing.assert_close(together.states[row], projection(state))  # type: ignore[operator]
    assert together.blocks == expected


def test_what_is_saved_is_counted() -> None:
    model, pixels = model_with("swin"), images(4).double()
    costs, rest = image_block_macs(model.decoder.backbone, (3, 16, 16))
    assert len(costs) == 8 and costs.min() > 0 and rest > 0
    model.decoding.image_exit = ImageExit(-1.0)  # everybody leaves every stage at once
    decoded = model.decode({"pixel_values": pixels}, policy=policy(**RULE))
    assert decoded.image_blocks == [3] * 4 and decoded.num_image_blocks == 8
    assert decoded.macs.images == pytest.approx(4 * (rest + float(costs[[0, 1, 5]].sum())))
    assert decoded.full_image_macs == pytest.approx(4 * (rest + float(costs.sum())))
    late = ImageExit(-1.0, min_block=4).encode(model.decoder.backbone, pixels)
    assert late.blocks == [1 + 3 + 1] * 4


def test_full_depth_means_the_image_encoder_too_and_traces_see_what_decoding_sees() -> None:
    pixels = images(3)
    model = captioner(decoding={"image_exit": {"threshold": -1}, "max_length": 6}, exit_policy=RULE)
    plain = captioner(decoding={"max_length": 6}, exit_policy=RULE)
    full = model.decode({"pixel_values": pixels}, policy=policy(type="final"))
    assert full.image_blocks is None
    assert full.captions == plain.decode({"pixel_values": pixels}, policy=policy(type="final")).captions
    early = trace_captions(model, [batch(3)], "words")
    assert not torch.equal(early.top_probability, trace_captions(plain, [batch(3)], "words").top_probability)
    backbone, pixels = model.decoder.backbone, batch(3)["pixel_values"]
    found = model.decoding.encode(backbone, model.exit_policy, pixels)
    assert torch.equal(found.states, ImageExit(-1).encode(backbone, pixels).states)


def test_wrong_numbers_are_named() -> None:
    for keys, words in (({"threshold": -2}, "threshold"), ({"threshold": 0.5, "min_block": 0}, "min_block")):
        with pytest.raises(ConfigurationError, match=f"decoding.image_exit.{words}"):
            ImageExit(**keys)  # type: ignore[arg-type]
