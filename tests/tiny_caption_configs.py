"""The shipped captioning configs, and how they shrink to something that trains in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from beem_plugin.common.params import load_config
from tests.tiny_project import CONFIGS

TOP_LEVEL = sorted(path for path in CONFIGS.glob("*.jsonnet") if path.stem.startswith(("coco_", "shapes_")))
"""Captioning configs beside those of GLUE; they import the one of the same name in `captions`."""

VARIABLES = {"COCO_FILE": "dataset_coco.json"}
ENCODER = {
    "model_type": "vit",
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 16,
    "patch_size": 8,
}
DECODER = {"model_type": "gpt2", "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32}


def caption_configs() -> list[Path]:
    """Every config of COCO and shapes once: where there is one of the same name at the top, that one."""
    top = {path.stem for path in TOP_LEVEL}
    others = [path for kind in ("coco", "shapes") for path in (CONFIGS / "captions").glob(f"{kind}_*.jsonnet")]
    return TOP_LEVEL + sorted(path for path in others if path.stem not in top)


def tiny(path: Path) -> dict[str, Any]:
    """The config's method on generated shapes, with a tiny network, for one epoch."""
    config = load_config(path, ext_vars=VARIABLES).as_dict(quiet=True)
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
