"""Every captioning config trains: its method on generated shapes and a tiny network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.archival import load_archive
from beem_plugin.common.params import load_config
from beem_plugin.common.registry import Params
from beem_plugin.exits.token_trace import TokenTrace
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.training.train import train_model
from tests.tiny_captioner import images
from tests.tiny_project import CONFIGS

PATHS = sorted((CONFIGS / "captions").glob("*.jsonnet"))
ENCODER = {
    "model_type": "vit",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 16,
    "patch_size": 8,
}
DECODER = {"model_type": "gpt2", "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32}


def tiny(path: Path) -> dict[str, Any]:
    config = load_config(path, ext_vars={"COCO_FILE": "dataset_coco.json"}).as_dict(quiet=True)
    config["dataset_reader"] = {
        "type": "shapes_captions",
        "tokenizer": "words",
        "image_size": 16,
        "num_train": 60,
        "num_val": 8,
        "num_test": 8,
        "holdout_fraction": 0.3,
    }
    backbone = config["model"]["decoder"]["backbone"]
    shortened = {"num_layers": 2} if "num_layers" in backbone else {}
    config["model"]["decoder"]["backbone"] = {"encoder": ENCODER, "decoder": DECODER, **shortened}
    if shortened:
        config["model"]["decoder"]["exit_layers"] = [2]
    config["trainer"] |= {"num_epochs": 1, "cuda_device": -1}
    return config


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_config_trains_calibrates_and_captions(path: Path, tmp_path: Path) -> None:
    train_model(Params(tiny(path)), tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["calibration_source"] == "train[holdout]"
    assert sum(metrics["calibration_exit_histogram"]) == metrics["calibration_samples"]
    archive = load_archive(tmp_path / "run" / "model.tar.gz")
    model = archive.model
    assert isinstance(model, MultiExitCaptioner) and model.exit_policy.is_calibrated
    assert archive.calibration is not None and isinstance(archive.calibration.trace, TokenTrace)
    captions = model.generate({"pixel_values": images(3)}, max_length=6)
    assert len(captions) == 3 and all(1 <= len(caption.tokens) <= 6 for caption in captions)


def test_configs_name_the_papers_network() -> None:
    for path in PATHS:
        config = load_config(path, ext_vars={"COCO_FILE": "dataset_coco.json"})
        if path.stem.startswith("coco"):
            backbone = config["model"]["decoder"]["backbone"]
            assert backbone["encoder"] == "microsoft/swin-base-patch4-window7-224-in22k"
            assert backbone["decoder"] == config["dataset_reader"]["tokenizer"]["model_name"] == "gpt2"
