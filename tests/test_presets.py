"""The settings of the presets: published values, what arguments override, and what exits read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.common.encoder_reads import reads
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.params import load_config

OPEN = {"BEEM_BACKBONE": "", "BEEM_POOLER": "", "GLUE_DIR": "", "COCO_FILE": "dataset_coco.json"}
METHODS = "(import 'beem/methods.libsonnet')"
CAPTIONS = "(import 'beem/captions.libsonnet')"

# Method: rate, batch, epochs and weight decay of the paper or its release; type, rate and scheduler of a second stage.
PUBLISHED: dict[str, tuple[float, int, int, float, tuple[str, float, str | None] | None]] = {
    "pabee": (2e-5, 32, 5, 0.0, None),
    "pcee": (2e-5, 32, 5, 0.0, None),
    "deebert": (2e-5, 8, 3, 0.0, None),
    "elasticbert": (2e-5, 32, 5, 0.1, None),
    "fastbert": (2e-5, 16, 5, 0.01, ("adamw", 2e-4, "linear_with_warmup")),
    "etfee": (2e-5, 32, 5, 0.0, ("adamw", 8e-3, "linear_with_warmup")),
    "ztw": (3e-5, 32, 5, 0.01, ("adam", 1e-2, "cosine_with_warmup")),
    "palbert": (1e-5, 32, 25, 0.01, None),
    "jei_dnn": (3e-5, 16, 5, 0.01, ("sgd", 1e-2, None)),
}


def evaluated(tmp_path: Path, text: str, **variables: str) -> dict[str, Any]:
    path = tmp_path / "config.jsonnet"
    path.write_text(text)
    found: dict[str, Any] = load_config(path, ext_vars={**OPEN, **variables}).as_dict(quiet=True)
    return found


def task(arguments: str, method: str = "") -> str:
    base = f"(import 'beem/glue.libsonnet').task({arguments})"
    return f"{base} + {METHODS}.{method}" if method else base


@pytest.mark.parametrize("method", PUBLISHED)
def test_defaults_are_published_and_arguments_hold(tmp_path: Path, method: str) -> None:
    rate, batch, epochs, decay, second = PUBLISHED[method]
    config = evaluated(tmp_path, task("'mrpc'", method))
    trainer = config["trainer"]
    assert trainer["optimizer"]["lr"] == rate and trainer["optimizer"]["weight_decay"] == decay
    assert config["data_loader"]["batch_size"] == batch and trainer["num_epochs"] == epochs
    if second is not None:
        stage = trainer["stages"][1]
        scheduler = stage.get("learning_rate_scheduler", trainer["learning_rate_scheduler"])
        found = stage["optimizer"]["type"], stage["optimizer"]["lr"], scheduler and scheduler["type"]
        assert found == second
    given = evaluated(tmp_path, task("'mrpc', epochs=7, lr=4e-5, batch_size=12", method))
    assert given["trainer"]["num_epochs"] == 7 and given["trainer"]["optimizer"]["lr"] == 4e-5
    assert given["data_loader"]["batch_size"] == 12
    assert all("num_epochs" not in stage for stage in given["trainer"].get("stages", []))


def test_details_of_published_methods(tmp_path: Path) -> None:
    assert evaluated(tmp_path, task("'mrpc'", "palbert"))["trainer"]["patience"] == 5
    fastbert = evaluated(tmp_path, task("'mrpc'", "fastbert"))["trainer"]["stages"]
    assert [stage.get("num_epochs") for stage in fastbert] == [3, None]
    ztw = evaluated(tmp_path, task("'mrpc'", "ztw"))
    assert ztw["model"]["exit_policy"]["weights"] == "adam"
    assert ztw["trainer"]["callbacks"][0]["parameters_data"] == "train[fit]"
    assert evaluated(tmp_path, task("'mrpc'", "ztw_lbfgs"))["model"]["exit_policy"]["weights"] == "fit"
    gates = evaluated(tmp_path, task("'mrpc'", "jei_dnn_small()"))["trainer"]["stages"][1]
    assert gates["optimizer"]["type"] == "adam" and gates["objective"]["beta"] == 0.1


def test_captions_have_the_papers_settings(tmp_path: Path) -> None:
    coco = evaluated(tmp_path, f"{CAPTIONS}.coco")
    assert coco["data_loader"]["batch_size"] == 16 and coco["trainer"]["optimizer"]["lr"] == 3e-5
    model = evaluated(tmp_path, f"{CAPTIONS}.coco + {CAPTIONS}.mue()")["model"]
    assert model["decoding"]["num_beams"] == 5 and model["decoding"]["image_exit"]["threshold"] == 0.9
    assert model["exit_policy"]["policy"]["thresholds"] == 0.9
    ours = evaluated(tmp_path, f"{CAPTIONS}.coco + {CAPTIONS}.mue_at_speed()")["model"]
    assert ours["decoding"]["num_beams"] == 1 and ours["exit_policy"]["policy"]["thresholds"]["speedup"] == 1.5
    deecap = evaluated(tmp_path, f"{CAPTIONS}.coco + {CAPTIONS}.deecap")["model"]["decoder"]
    assert deecap["fork"] == {"type": "scaled", "above": 0.0, "exits": [3]}


def test_tasks_differ_in_metric_length_and_test_sets(tmp_path: Path) -> None:
    cola, mnli, stsb = (evaluated(tmp_path, task(f"'{name}'")) for name in ("cola", "mnli", "stsb"))
    assert (
        cola["trainer"]["validation_metric"] == "+matthews" and cola["dataset_reader"]["tokenizer"]["max_length"] == 64
    )
    assert mnli["test_data_path"] == {"matched": "validation_matched", "mismatched": "validation_mismatched"}
    assert stsb["model"]["type"] == "multi_exit_regressor"


def folder(tmp_path: Path, config: dict[str, Any], *files: str) -> str:
    path = tmp_path / f"encoder-{len(list(tmp_path.iterdir()))}"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for name in files:
        (path / name).write_text("{}")
    return str(path)


def test_exits_read_what_the_encoder_was_trained_for(tmp_path: Path) -> None:
    hub = {
        "albert-large-v2": "cls",
        "google-bert/bert-base-uncased": "cls",
        "roberta-base": "mean",
        "package:minilm": "mean",
    }
    assert {name: reads(name) for name in hub} == hub
    assert reads(folder(tmp_path, {"model_type": "albert"})) == "cls"
    assert reads(folder(tmp_path, {"model_type": "bert"})) == "cls"
    assert reads(folder(tmp_path, {"model_type": "mpnet"})) == "mean"
    assert reads(folder(tmp_path, {"model_type": "bert"}, "modules.json")) == "mean"
    assert (
        reads(folder(tmp_path, {"model_type": "bert", "_name_or_path": "microsoft/MiniLM-L12-H384-uncased"})) == "mean"
    )


def test_the_environment_overrides_encoder_and_pooler(tmp_path: Path) -> None:
    bert = folder(tmp_path, {"model_type": "bert"})
    text = task("'rte'")

    def exits(**variables: str) -> tuple[str, bool]:
        encoder = evaluated(tmp_path, text, **variables)["model"]["encoder"]
        return encoder["pooler"].get("pooling", "cls"), encoder["share_pooler"]

    assert exits() == ("cls", True)
    assert exits(BEEM_BACKBONE=bert) == ("cls", True)
    assert exits(BEEM_BACKBONE="package:minilm") == ("mean", False)
    assert exits(BEEM_BACKBONE=bert, BEEM_POOLER="mean") == ("mean", False)
    assert exits(BEEM_POOLER="mean") == ("mean", False)
    with pytest.raises(ConfigurationError, match="BEEM_POOLER: found 'first', allowed: cls, mean"):
        exits(BEEM_POOLER="first")
