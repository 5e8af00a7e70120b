"""Every captioning config trains: its method on generated shapes and a tiny network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.archival import load_archive
from beem_plugin.calibration.token_trace import TokenTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.params import load_config
from beem_plugin.common.registry import Params
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.training.train import train_model
from tests.tiny_caption_configs import TOP_LEVEL, VARIABLES, caption_configs, tiny
from tests.tiny_captioner import images
from tests.tiny_project import CONFIGS

PATHS = caption_configs()
METHODS = (
    *("final", "9_layers", "deebert", "elasticbert", "pabee", "fastbert", "leebert", "deecap", "mue", "beem_c", "beem"),
    *("calm_softmax", "calm_state", "calm_learned", "capeen"),
)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_config_trains_calibrates_and_captions(path: Path, tmp_path: Path) -> None:
    train_model(Params(tiny(path)), tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    archive = load_archive(tmp_path / "run" / "model.tar.gz")
    model = archive.model
    assert isinstance(model, MultiExitCaptioner) and model.exit_policy.is_calibrated
    assert metrics["calibration_source"] == "train[holdout]"
    assert sum(metrics["calibration_exit_histogram"]) == metrics["calibration_samples"]
    assert archive.calibration is not None and isinstance(archive.calibration.trace, TokenTrace)
    captions = model.generate({"pixel_values": images(3)}, max_length=6)
    assert len(captions) == 3 and all(1 <= len(caption.tokens) <= 6 for caption in captions)


def test_configs_name_the_papers_network() -> None:
    for path in PATHS:
        config = load_config(path, ext_vars=VARIABLES)
        if path.stem.startswith("coco"):
            backbone = config["model"]["decoder"]["backbone"]
            assert backbone["encoder"] == "microsoft/swin-base-patch4-window7-224-in22k"
            assert backbone["decoder"] == config["dataset_reader"]["tokenizer"]["model_name"] == "gpt2"


def test_there_is_a_config_for_each_method() -> None:
    assert {path.stem for path in PATHS} >= {f"coco_{method}" for method in METHODS}


def test_a_config_at_the_top_is_the_one_in_captions() -> None:
    assert {path.stem for path in TOP_LEVEL} >= {"coco_beem", "shapes_beem"}
    for path in TOP_LEVEL:
        twin = load_config(CONFIGS / "captions" / path.name, ext_vars=VARIABLES)
        assert load_config(path, ext_vars=VARIABLES).as_dict(quiet=True) == twin.as_dict(quiet=True)


@pytest.mark.parametrize("name", ["coco_beem", "coco_deebert"])
def test_a_rule_that_captions_cannot_calibrate_is_refused_before_the_first_stage(name: str, tmp_path: Path) -> None:
    (path,) = (path for path in PATHS if path.stem == name)
    config = tiny(path)
    config["model"]["exit_policy"] = {"type": "voting", "thresholds": 0.7}
    with pytest.raises(ConfigurationError, match=r"model\.exit_policy: found voting.*without calibrate_exits"):
        train_model(Params(config), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("model_state*"))
    config["trainer"]["callbacks"] = []
    train_model(Params(config), tmp_path / "run_2")
    assert load_archive(tmp_path / "run_2").model.exit_policy.is_calibrated
