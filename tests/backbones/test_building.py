"""Backbones from a name, a folder or a configuration, and the errors."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from beem_plugin.backbones import TransformerBackbone
from beem_plugin.backbones.families import FAMILIES
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data import hub

from .tiny_models import CONFIGS, build, full_forward, make_batch, tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small pretrained BERT, with its pooler, as transformers saves it."""
    torch.manual_seed(7)
    AutoModel.from_config(tiny("bert").config).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def last_hidden_state(backbone: TransformerBackbone, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    state = backbone.embed(batch)
    for number in range(1, backbone.num_layers + 1):
        state = backbone.layer(number, state)
    return state.hidden_states


def edit_checkpoint(folder: Path, **weights: torch.Tensor | None) -> None:
    """Sets or, given None, removes weights; `__` stands for a dot."""
    stored = load_file(folder / "model.safetensors")
    for key, value in weights.items():
        name = key.replace("__", ".")
        stored.pop(name, None)
        if value is not None:
            stored[name] = value
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def test_a_saved_model_of_every_family_gives_the_states_of_automodel(name: str, tmp_path: Path) -> None:
    backbone = tiny(name).eval()
    backbone.transformer_model.save_pretrained(tmp_path)
    loaded = build(model_name=str(tmp_path)).eval()
    assert type(loaded) is FAMILIES[CONFIGS[name]["model_type"]]
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    batch = make_batch(backbone)
    mask = batch["attention_mask"].bool()
    expected = AutoModel.from_pretrained(tmp_path).eval()(**batch).last_hidden_state
    torch.testing.assert_close(last_hidden_state(loaded, batch)[mask], expected[mask], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_saved_config_and_state_dict_rebuild_a_backbone(name: str, tmp_path: Path) -> None:
    backbone = tiny(name).eval()
    backbone.save_config(tmp_path)
    rebuilt = build(model_name=str(tmp_path), load_weights=False).eval()
    rebuilt.load_state_dict(backbone.state_dict())
    batch = make_batch(backbone)
    assert torch.equal(last_hidden_state(rebuilt, batch), last_hidden_state(backbone, batch))


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in ("albert-groups", "albert-inner")])
def test_num_layers_keeps_the_first_layers(name: str, tmp_path: Path) -> None:
    backbone = tiny(name).eval()
    backbone.transformer_model.save_pretrained(tmp_path)
    short = build(model_name=str(tmp_path), num_layers=2).eval()
    assert short.num_layers == 2
    batch = make_batch(backbone)
    expected = full_forward(backbone, batch)[2]
    if backbone.config.model_type == "modernbert":
        expected = backbone.transformer_model.final_norm(expected)
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(last_hidden_state(short, batch)[mask], expected[mask], rtol=1e-5, atol=1e-5)
    # The saved configuration is that of the short model, with or without the key.
    short.save_config(tmp_path / "short")
    for block in ({}, {"num_layers": 2}):
        rebuilt = build(model_name=str(tmp_path / "short"), load_weights=False, **block)
        rebuilt.load_state_dict(short.state_dict())


@torch.no_grad()
@pytest.mark.parametrize("name", ["albert-groups", "albert-inner"])
def test_an_albert_in_groups_is_shortened_to_whole_groups(name: str) -> None:
    backbone = tiny(name).eval()
    short = tiny(name, num_layers=2).eval()
    short.load_state_dict(backbone.state_dict(), strict=False)
    batch = make_batch(backbone)
    expected = full_forward(backbone, batch)
    torch.testing.assert_close(last_hidden_state(short, batch), expected[2], rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigurationError, match=r"num_layers: found 3.*multiples of 2"):
        tiny(name, num_layers=3)


@pytest.mark.parametrize("num_layers", [0, 5])
def test_num_layers_must_exist(num_layers: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"num_layers: found {num_layers}, allowed: 1 to 4"):
        tiny("bert", num_layers=num_layers)


def test_random_weights_follow_the_global_seed() -> None:
    first, second = tiny("bert").state_dict(), tiny("bert").state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    other = build(config=dict(CONFIGS["bert"])).state_dict()
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_the_pretrained_pooler_is_available_and_not_part_of_the_backbone(folder: Path) -> None:
    backbone = build(model_name=str(folder))
    stored = load_file(folder / "model.safetensors")
    pooler = backbone.pretrained_pooler()
    assert pooler is not None
    assert torch.equal(pooler[0], stored["pooler.dense.weight"]) and torch.equal(pooler[1], stored["pooler.dense.bias"])
    assert not any("pooler" in key for key in backbone.state_dict())
    assert build(model_name=str(folder), load_weights=False).pretrained_pooler() is None
    assert tiny("bert").pretrained_pooler() is None


@pytest.mark.parametrize("name", ["albert", "mpnet", "roberta"])
def test_poolers_of_other_families_are_available(name: str, tmp_path: Path) -> None:
    AutoModel.from_config(tiny(name).config).save_pretrained(tmp_path)
    pooler = build(model_name=str(tmp_path)).pretrained_pooler()
    assert pooler is not None and pooler[0].shape == (32, 32) and pooler[1].shape == (32,)


def test_a_checkpoint_without_pooler_loads_without_one(folder: Path) -> None:
    edit_checkpoint(folder, pooler__dense__weight=None)
    assert build(model_name=str(folder)).pretrained_pooler() is None


def test_missing_encoder_weights_raise_an_error_that_names_them(folder: Path) -> None:
    edit_checkpoint(folder, encoder__layer__1__output__dense__weight=None)
    with pytest.raises(
        ConfigurationError, match=r"model_name: .*lacks weights: encoder\.layer\.1\.output\.dense\.weight"
    ):
        build(model_name=str(folder))


def test_weights_of_another_shape_raise_an_error_that_names_them(folder: Path) -> None:
    edit_checkpoint(folder, embeddings__LayerNorm__bias=torch.zeros(3))
    with pytest.raises(ConfigurationError, match=r"other shapes .*embeddings\.LayerNorm\.bias"):
        build(model_name=str(folder))


def test_heads_are_dropped_silently_and_unused_encoder_weights_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit_checkpoint(folder, cls__predictions__bias=torch.zeros(3), embeddings__position_ids=torch.arange(3))
    with caplog.at_level(logging.WARNING):
        build(model_name=str(folder))
        assert not caplog.records
        edit_checkpoint(folder, encoder__layer__9__output__dense__weight=torch.zeros(3))
        build(model_name=str(folder))
    assert [record.getMessage() for record in caplog.records if "encoder.layer.9" in record.getMessage()]


def test_a_shortened_model_does_not_warn_about_removed_blocks(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        build(model_name=str(folder), num_layers=1)
    assert not caplog.records


def test_config_overrides_reach_the_modules(folder: Path) -> None:
    backbone = build(model_name=str(folder), config_overrides={"hidden_dropout_prob": 0.25})
    assert backbone.transformer_model.embeddings.dropout.p == 0.25


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({}, "found neither of 'model_name' and 'config'"),
        ({"model_name": "x", "config": {"model_type": "bert"}}, "found both of 'model_name' and 'config'"),
        ({"config": {"model_type": "gpt2"}}, "backbone.config: 'model_type': found 'gpt2', allowed: albert, bert,"),
        ({"config": {"hidden_size": 8}}, "'model_type': found None, allowed: albert, bert,"),
        ({"config": {"model_type": "bert", "hiden_size": 8}}, "found 'hiden_size', allowed: hidden_size"),
        ({"config": {"model_type": "bert", "hidden_size": "x"}}, "backbone.config: .*hidden_size"),
        ({"config": {"model_type": "bert", "hidden_size": 9, "num_attention_heads": 2}}, "backbone.config: .*9"),
        ({"config": {"model_type": "bert", "is_decoder": True}}, "found a decoder"),
        ({"config": CONFIGS["bert"], "config_overrides": {"dropout_prob": 0.0}}, "config_overrides: .*'dropout_prob'"),
        (
            {"config": CONFIGS["bert"], "config_overrides": {"hidden_size": "x"}},
            "config_overrides.hidden_size: found 'x'",
        ),
        (
            {"config": CONFIGS["bert"], "config_overrides": {"num_hidden_layers": 2}},
            "allowed: 'num_layers', which shortens",
        ),
        (
            {"config": CONFIGS["distilbert"], "config_overrides": {"n_layers": 2}},
            "allowed: 'num_layers', which shortens",
        ),
    ],
)
def test_invalid_config_blocks_raise_one_line_errors(block: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        build(**block)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model_type", ["gpt2", "no_such_type", None])
def test_a_folder_of_an_unsupported_family_raises_an_error_with_the_supported_ones(
    model_type: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type} if model_type else {}))
    with pytest.raises(ConfigurationError, match=r"model_name .*'model_type': found .*allowed: .*modernbert") as error:
        build(model_name=str(tmp_path))
    assert str(tmp_path) in str(error.value)


def test_a_folder_without_config_or_weights_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"model.encoder.backbone.model_name: .*has no config.json"):
        build(model_name=str(tmp_path))
    tiny("bert").save_config(tmp_path)
    with pytest.raises(ConfigurationError, match=r"model.encoder.backbone.model_name: .*cannot be read") as error:
        build(model_name=str(tmp_path))
    assert "\n" not in str(error.value)


def test_an_unreachable_hub_raises_a_one_line_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.hub_reachable.cache_clear()
    with pytest.raises(ConfigurationError, match=r"model.encoder.backbone.model_name: 'nobody/no-such-model'") as error:
        build(model_name="nobody/no-such-model")
    hub.hub_reachable.cache_clear()
    assert "\n" not in str(error.value) and "folder" in str(error.value)


def test_an_input_longer_than_the_position_table_raises_an_error_that_names_the_key() -> None:
    for name, longest in {"bert": 40, "roberta": 38, "mpnet": 38, "distilbert": 40}.items():
        backbone = tiny(name).eval()
        backbone.embed(make_batch(backbone, lengths=(longest,)))
        with pytest.raises(
            ConfigurationError, match=f"tokenizer.max_length: .*{longest + 1} tokens.*at most {longest}"
        ):
            backbone.embed(make_batch(backbone, lengths=(longest + 1,)))
