"""The two steps of Flickr8k: a language model of captions, then a captioner that starts as its decoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Dinov2Config, Dinov2Model

import beem_plugin.components  # noqa: F401
from beem_plugin.archival import load_archive
from beem_plugin.common.params import load_config
from beem_plugin.data import DatasetReader
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.models.saved_weights import read_weights
from beem_plugin.training.train import train_model
from tests.tiny_captions import captioned_colours
from tests.tiny_project import CONFIGS

SMALL = {
    "model.decoder.backbone.decoder.n_embd": 16,
    "model.decoder.backbone.decoder.n_head": 2,
    "model.decoder.backbone.decoder.n_layer": 3,
    "trainer.num_epochs": 1,
    "trainer.cuda_device": -1,
}


def environment(folder: Path) -> dict[str, str]:
    names = {"FLICKR8K_FILE": folder / "data" / "dataset_colours.json", "CAPTION_LM": folder / "lm"}
    return {name: str(path) for name, path in {**names, "IMAGE_ENCODER": folder / "encoder"}.items()}


def config(name: str, folder: Path, overrides: dict[str, Any], **variables: str) -> Any:
    path = CONFIGS / "captions" / f"{name}.jsonnet"
    return load_config(path, {**SMALL, **overrides}, {**environment(folder), **variables})


def small_lm(folder: Path, **variables: str) -> Any:
    return config("flickr8k_lm", folder, {"dataset_reader.tokenizer.vocab_size": 280}, **variables)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, an encoder, and the language model trained."""
    folder = tmp_path_factory.mktemp("flickr8k")
    captioned_colours(folder / "data", {"train": 40, "val": 4, "test": 4})
    torch.manual_seed(0)
    shape = Dinov2Config(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=28)
    Dinov2Model(shape).save_pretrained(folder / "encoder")
    train_model(small_lm(folder), folder / "lm")
    return folder


def test_the_language_model_sees_no_caption_of_tested_images(folder: Path) -> None:
    metrics = json.loads((folder / "lm" / "metrics.json").read_text())
    assert metrics["validation_perplexity"] > 1 and "calibration_samples" not in metrics
    # Named in a text of its own, captions of the split's test images stay out as well.
    text = folder / "captions.txt"
    text.write_text("test_0.png#0\tA secret one .\nelse.jpg#0\tA public one .\nother.jpg#0\tAnother one .\n")
    made = small_lm(folder, CAPTION_TEXT=str(text))
    reader_config, source = made["dataset_reader"].as_dict(), made["train_data_path"]
    assert source == f"{text}[fit]"
    instances = DatasetReader.from_params(reader_config).read(str(text))
    assert [instance.fields["caption"] for instance in instances] == ["a public one", "another one"]


def test_the_captioner_starts_as_the_language_model_and_looks_at_images(folder: Path) -> None:
    overrides = {"dataset_reader.image_processor.size": 28, "dataset_reader.image_processor.crop_size": None}
    params = config("flickr8k_beem", folder, {**overrides, "dataset_reader.holdout_fraction": 0.3})
    train_model(params, folder / "beem")
    metrics = json.loads((folder / "beem" / "metrics.json").read_text())
    assert metrics["calibration_source"] == "train[holdout]" and metrics["test_token_accuracy"] >= 0
    archive = load_archive(folder / "beem" / "model.tar.gz")
    assert isinstance(archive.model, MultiExitCaptioner) and archive.model.exit_policy.is_calibrated
    tokenizer = archive.dataset_reader.tokenizer
    assert isinstance(tokenizer, CaptionTokenizer) and tokenizer.vocab_size == 280
    # The image encoder is as it came, the decoder has learned, from where the language model had got.
    trained, encoder = archive.model.state_dict(), Dinov2Model.from_pretrained(folder / "encoder").state_dict()
    prefix = "decoder.backbone.transformer_model"
    assert torch.equal(trained[f"{prefix}.encoder.layernorm.weight"], encoder["layernorm.weight"])
    words = f"{prefix}.decoder.transformer.wte.weight"
    moved = trained[words] - read_weights(str(folder / "lm"))[words]
    assert 0 < float(moved.abs().max()) < 0.1
    assert trained[f"{prefix}.enc_to_dec_proj.weight"].shape == (16, 24)
