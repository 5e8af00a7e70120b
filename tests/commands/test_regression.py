"""STS-B by command: train, calibrate, evaluate, predict, trace, replay, on a tiny model and tiny data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr

import beem_plugin.components  # noqa: F401
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.params import load_config
from beem_plugin.training.train import train_model
from tests.tiny_project import CONFIGS, run

PATIENCE = {"type": "patience", "patience": 1, "tolerance": 0.3}


@pytest.fixture(scope="module")
def regressor(tiny_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("regressor") / "run"
    overrides = {
        "trainer.num_epochs": 12,
        "trainer.optimizer.lr": 2e-3,
        "trainer.cuda_device": -1,
        "dataset_reader.holdout_fraction": 0.3,
    }
    train_model(load_config(CONFIGS / "stsb_berxit.jsonnet", overrides, ext_vars=tiny_environment), directory)
    return directory


@pytest.fixture(scope="module")
def trace_file(regressor: Path) -> Path:
    run("trace", str(regressor / "model.tar.gz"), "validation", "--output-file", str(regressor / "dev.npz"))
    return regressor / "dev.npz"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_training_learns_and_calibrates(regressor: Path) -> None:
    metrics = json.loads((regressor / "metrics.json").read_text())
    assert metrics["best_validation_pearson"] > 0.7
    assert {"test_exit_1_pearson", "test_exit_1_spearman", "test_early_exit_pearson", "calibration_spearman"} <= set(
        metrics
    )
    assert metrics["calibration_layer_speedup"] >= 1.5
    policy = json.loads((regressor / "calibration" / "policy.json").read_text())
    assert policy["type"] == "predicted_error" and len(policy["thresholds"]) == 2


def test_a_trace_has_float_labels_and_the_signal(trace_file: Path) -> None:
    trace = ExitTrace.load(trace_file)
    assert trace.logits.shape == (40, 3, 1) and trace.has_labels and "predicted_error" in trace.signals
    assert trace.labels.min() < 2 < 3 < trace.labels.max()


@pytest.mark.parametrize("engine", ["single", "compaction", "depth_pools"])
@pytest.mark.parametrize("name", ["calibrated", "patience"])
def test_evaluate_executes_what_replay_simulates(
    regressor: Path, trace_file: Path, tmp_path: Path, name: str, engine: str
) -> None:
    policy = PATIENCE if name == "patience" else json.loads((regressor / "calibration" / "policy.json").read_text())
    (tmp_path / "p.json").write_text(json.dumps(policy))
    override = ["-o", json.dumps({"model.exit_policy": policy})] if name == "patience" else []
    run(
        "evaluate", str(regressor / "model.tar.gz"), "validation", "--engine", engine, *override,
        "--output-file", str(tmp_path / "e.json"), "--predictions-output-file", str(tmp_path / "e.jsonl"),
    )  # fmt: skip
    run(
        "replay", str(trace_file), "--policy", str(tmp_path / "p.json"),
        "--output-file", str(tmp_path / "r.json"), "--predictions-output-file", str(tmp_path / "r.jsonl"),
    )  # fmt: skip
    executed, simulated = lines(tmp_path / "e.jsonl"), lines(tmp_path / "r.jsonl")
    assert [row["exit"] for row in executed] == [row["exit"] for row in simulated]
    values = np.array([row["value"] for row in executed])
    assert values == pytest.approx(np.array([row["value"] for row in simulated]), abs=1e-4)
    gold = [row["gold_value"] for row in executed]
    metrics, replayed = json.loads((tmp_path / "e.json").read_text()), json.loads((tmp_path / "r.json").read_text())
    assert metrics["pearson"] == pytest.approx(pearsonr(gold, values).statistic, abs=1e-5)
    assert metrics["pearson"] == pytest.approx(replayed["metrics"]["pearson"], abs=1e-4)
    assert metrics["exit_histogram"] == replayed["exit_histogram"]
    assert "accuracy" not in replayed["metrics"] and replayed["final_metrics"]["spearman"] > 0.7


def test_predictions_give_a_value(regressor: Path, tmp_path: Path) -> None:
    records = [
        {"sentence1": "a good film", "sentence2": "it is good", "label": 4.5},
        {"sentence1": "a bad bad bad film", "sentence2": "it is good"},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    run(
        "predict",
        str(regressor / "model.tar.gz"),
        str(tmp_path / "in.jsonl"),
        "--output-file",
        str(tmp_path / "o.jsonl"),
    )
    good, bad = lines(tmp_path / "o.jsonl")
    assert good["value"] > bad["value"] and good["gold_value"] == 4.5 and "gold_value" not in bad
    assert not {"label", "probabilities"} & set(good) and {"exit", "layer", "score"} <= set(good)


def test_calibrate_reports_squared_errors(
    regressor: Path, trace_file: Path, tmp_path: Path, without_plots: None
) -> None:
    (tmp_path / "p.json").write_text(
        json.dumps({"type": "predicted_error", "thresholds": {"type": "budget", "speedup": 1.3}})
    )
    policy, report = str(tmp_path / "p.json"), str(tmp_path / "r")
    said = run("calibrate", "--trace", str(trace_file), "--policy", policy, "--report-dir", report)
    assert "mean squared error" in said.stdout
    assert (tmp_path / "r" / "report.html").is_file()


@pytest.mark.parametrize(
    "policy, message",
    [
        ({"type": "entropy", "thresholds": 0.5}, "exit policy entropy: found a regression"),
        ({"type": "patience", "patience": 2}, "patience.tolerance: found nothing"),
        ({"type": "predicted_error", "thresholds": {"type": "error_rate"}}, "counts errors"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_no_result(
    trace_file: Path, tmp_path: Path, policy: Any, message: str
) -> None:
    (tmp_path / "p.json").write_text(json.dumps(policy))
    result = run("replay", str(trace_file), "--policy", str(tmp_path / "p.json"), check=False)
    assert (
        result.returncode == 1 and message in result.stderr and "allowed" in result.stderr or "needed" in result.stderr
    )
    assert "Traceback" not in result.stderr


def test_a_rule_on_confidence_is_refused_before_training(tiny_environment: dict[str, str], tmp_path: Path) -> None:

    params = load_config(
        CONFIGS / "stsb_berxit.jsonnet", {"model.exit_policy": {"type": "beem"}}, ext_vars=tiny_environment
    )
    with pytest.raises(ConfigurationError, match="exit policy beem: found a regression"):
        train_model(params, tmp_path / "run")


def test_a_classifier_for_a_regression_names_the_regressor(tiny_environment: dict[str, str], tmp_path: Path) -> None:

    params = load_config(
        CONFIGS / "stsb_berxit.jsonnet", {"model.type": "multi_exit_classifier"}, ext_vars=tiny_environment
    )
    with pytest.raises(ConfigurationError, match="multi_exit_regressor"):
        train_model(params, tmp_path / "run")
