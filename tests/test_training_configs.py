"""Every shipped config trains, with tiny overrides; every shipped policy file builds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import beem_plugin.components  # noqa: F401
from beem_plugin.archival import load_archive
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.params import PRESETS, load_config
from beem_plugin.dataset_readers.glue_tasks import GLUE_TASKS
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.training.train import train_model
from tests.tiny_caption_configs import TOP_LEVEL
from tests.tiny_project import CONFIGS, write_tickets

RUNNABLE = sorted(set(CONFIGS.glob("*.jsonnet")) - set(TOP_LEVEL))
TRAINED = [path for path in RUNNABLE if "_large_" not in path.stem]
"""The others differ from one of these in the encoder's name only."""
POLICIES = sorted((CONFIGS / "policies").glob("*.jsonnet"))
TINY = {"trainer.num_epochs": 1, "trainer.cuda_device": -1, "trainer.callbacks.0.batch_size": 32}


@pytest.mark.parametrize("path", TRAINED, ids=lambda path: path.stem)
def test_config_trains_calibrates_and_loads(path: Path, tiny_environment: dict[str, str], tmp_path: Path) -> None:
    tiny = dict(TINY)
    if path.stem == "quickstart":
        # The real packaged encoder and data, but few of them.
        tiny |= {"dataset_reader.max_instances": 24, "model.encoder.backbone.num_layers": 2}
        tiny |= {"model.encoder.exit_layers": [1, 2], "model.encoder.branch.width": 12}
    if path.stem == "rte_9_layers":
        # The tiny encoder has three.
        tiny |= {"model.encoder.backbone.num_layers": 2, "model.encoder.exit_layers": [2]}
    if path.stem == "my_data":
        data = write_tickets(tmp_path / "tickets.csv")
        parts = {"train_data_path": "fit", "validation_data_path": "holdout", "test_data_path": "test"}
        tiny |= {key: f"{data}[{part}]" for key, part in parts.items()}
        tiny |= dict.fromkeys(
            ["dataset_reader.tokenizer.model_name", "model.encoder.backbone.model_name"],
            tiny_environment["BEEM_BACKBONE"],
        )
    if path.stem in ("rte_recommended", "my_data"):
        tiny |= {"model.encoder.backbone.num_layers": 3, "model.encoder.exit_layers": [1, 2, 3]}
        tiny |= {"model.encoder.branch.width": 16}
    if path.stem == "rte_etfee":
        tiny |= {"model.encoder.branch.width": 2, "model.exit_policy.patience": 1}
    if path.stem == "rte_fastbert":
        tiny["trainer.stages.0.num_epochs"] = 1
    if path.stem == "rte_past_future":
        tiny["model.encoder.gradual_unfreezing"] = 1
    params = load_config(path, tiny, ext_vars=tiny_environment)
    train_model(params, tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["calibration_source"].endswith("[holdout]")
    assert sum(metrics["calibration_exit_histogram"]) == metrics["calibration_samples"]
    last = metrics["calibration_exit_histogram"][-1] / metrics["calibration_samples"]
    assert metrics["calibration_early_share"] == pytest.approx(1 - last)
    assert metrics["test_early_exit_layer_speedup"] >= 1
    if path.stem == "mnli_beem":
        both = [metrics[f"test_{part}_accuracy"] for part in ("matched", "mismatched")]
        assert metrics["test_accuracy"] == pytest.approx(sum(both) / 2)
        assert metrics["test_matched_early_exit_layer_speedup"] >= 1
    archive = load_archive(tmp_path / "run" / "model.tar.gz")
    assert archive.model.exit_policy.is_calibrated


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.stem)
def test_config_names_hub_models_without_the_environment(path: Path) -> None:
    config = load_config(path, ext_vars={"BEEM_BACKBONE": "", "GLUE_DIR": ""})
    name = config["model"]["encoder"]["backbone"]["model_name"]
    own = {"_albert_large_": "albert-large-v2", "_bert_large_": "bert-large-uncased"}
    large = [model for part, model in own.items() if part in path.stem]
    assert name in (large or ("albert-base-v2", "bert-base-uncased", "microsoft/mpnet-base", "package:minilm"))
    assert config["dataset_reader"]["tokenizer"]["model_name"] == name


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_policy_file_calibrates_and_decides(path: Path) -> None:
    torch.manual_seed(0)
    labels = torch.randint(2, (400,))
    noise = torch.randn(400, 6, 2).cumsum(1) + 2 * torch.nn.functional.one_hot(labels, 2).unsqueeze(1)
    trace = ExitTrace(noise, labels)
    policy = ExitPolicy.from_params(load_config(path))
    report = policy.calibrate(trace)
    exits = replay(policy, trace).exits
    assert torch.bincount(exits - 1, minlength=6).tolist() == report.exit_histogram
    rebuilt = ExitPolicy.from_params(report.policy)
    assert torch.equal(replay(rebuilt, trace).exits, exits)


def test_there_is_a_config_for_each_promised_task() -> None:
    names = {path.stem for path in RUNNABLE}
    assert {f"{task}_beem" for task in GLUE_TASKS if task != "stsb"} | {"quickstart", "my_data"} <= names
    assert {f"{task}_{size}_large_beem" for task in ("rte", "cola", "qqp") for size in ("albert", "bert")} <= names


def test_presets_are_found_from_any_folder_and_exist_once(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonnet"
    own.write_text("(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').deebert")
    shipped = load_config(CONFIGS / "rte_deebert.jsonnet").as_dict(quiet=True)
    assert load_config(own).as_dict(quiet=True) == shipped
    relative = own.read_text().replace("beem/", f"{CONFIGS}/lib/")
    own.write_text(relative)
    assert load_config(own).as_dict(quiet=True) == shipped
    for path in (PRESETS / "beem").glob("*.libsonnet"):
        assert (CONFIGS / "lib" / path.name).read_text() == f"import 'beem/{path.name}'\n"
