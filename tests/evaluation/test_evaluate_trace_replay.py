from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from beem_plugin.archival import load_archive
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.rendering.pages.evaluation import shown_figure
from beem_plugin.tasks.task import task_of_archive
from tests.tiny_project import run

POLICIES: dict[str, Any] = {
    "beem-a": None,
    "patience": {"type": "patience", "patience": 1},
    "confidence": {"type": "max_probability", "thresholds": 0.7},
    "full": {"type": "final"},
    "fixed": {"type": "fixed_exit", "exit": 2},
}


@pytest.fixture(scope="module")
def trace_file(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "t.npz"
    run("trace", str(trained / "model.tar.gz"), "validation", "--output-file", str(path))
    return path


def test_trace_holds_every_exit_in_input_order(trained: Path, trace_file: Path) -> None:
    trace = ExitTrace.load(trace_file)
    assert trace.logits.shape == (40, 3, 2)
    assert trace.labels.tolist() == [number % 2 for number in range(40)]
    assert trace.meta["source"] == "validation" and trace.meta["label_names"] == ["negative", "positive"]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("batch_size", ["1", "16"])
def test_evaluate_executes_what_replay_simulates(
    trained: Path, trace_file: Path, tmp_path: Path, name: str, batch_size: str
) -> None:
    policy = POLICIES[name] or json.loads((trained / "calibration" / "policy.json").read_text())
    (tmp_path / "p.json").write_text(json.dumps(policy))
    command = ["evaluate", str(trained / "model.tar.gz"), "validation", "--batch-size", batch_size]
    command += ["--output-file", str(tmp_path / "e.json"), "--predictions-output-file", str(tmp_path / "e.jsonl")]
    if POLICIES[name] is not None:
        command += ["-o", json.dumps({"model.exit_policy": policy})]
    run(*command)
    run(
        "replay", str(trace_file), "--policy", str(tmp_path / "p.json"),
        "--output-file", str(tmp_path / "r.json"), "--predictions-output-file", str(tmp_path / "r.jsonl"),
    )  # fmt: skip
    executed = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    simulated = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    names = ["negative", "positive"]
    assert [(row["index"], row["exit"], row["label"]) for row in executed] == [
        (row["index"], row["exit"], names[row["label"]]) for row in simulated
    ]
    metrics, replayed = json.loads((tmp_path / "e.json").read_text()), json.loads((tmp_path / "r.json").read_text())
    assert metrics["accuracy"] == replayed["metrics"]["accuracy"]
    for key in ("layer_speedup", "average_exit", "exit_histogram"):
        assert metrics[key] == replayed[key]
    answers = [number % 2 for number in range(40)], [names.index(row["label"]) for row in executed]
    assert metrics["confusion_matrix"] == confusion_matrix(*answers).tolist()
    columns = precision_recall_fscore_support(*answers, labels=[0, 1], zero_division=0.0)
    for label, *values in zip(names, *columns, strict=True):
        assert list(metrics["per_class"][label].values()) == pytest.approx(values)
    # Numbers that were typed in were calibrated on nothing.
    assert metrics["calibrated_on"] == ("train[holdout]" if POLICIES[name] is None else None)
    layers = sum(row["exit"] for row in executed)
    assert replayed["layer_speedup"] == pytest.approx(3 * 40 / layers)


def test_evaluate_says_which_data_there_are_and_that_there_are_no_exits(
    trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = run("evaluate", str(trained), "gone.tsv", "-o", '{"model.exit_policy": "final"}', check=False)
    assert refused.returncode == 1 and "policy is final: no sample exits early" in caplog.text + refused.stderr
    assert "gone.tsv: no such file; allowed: a path, or FILE[test]; the archive's config has" in refused.stderr
    assert "test_data_path 'validation'" in refused.stderr


def test_predict_says_whose_probabilities_there_are(trained: Path) -> None:
    archive = load_archive(trained)
    legend = task_of_archive(archive).legend(archive.model)
    assert legend == "probabilities are those of negative, positive; a higher score is more confident"
    archive.model.vocab = Vocabulary(["no, never", "two\nlines"])
    legend = task_of_archive(archive).legend(archive.model)
    assert legend.startswith(r"probabilities are those of 'no, never', 'two\nlines'; ")


def test_figures_are_shown_as_what_they_are() -> None:
    shown = {"accuracy": 1.0, "average_exit": 1.0, "layer_speedup": 1.0, "mean_squared_error": 4.0}
    assert [shown_figure(*one) for one in shown.items()] == ["100.00 %", "1.00", "1.00x", "4.00"]


def test_replay_calibrates_on_another_trace(trained: Path, trace_file: Path, tmp_path: Path) -> None:
    (tmp_path / "open.jsonnet").write_text("{type: 'beem', weights: {type: 'accuracy'}}")
    command = [
        "replay",
        str(trace_file),
        "--policy",
        str(tmp_path / "open.jsonnet"),
        "--output-file",
        str(tmp_path / "r"),
    ]
    refused = run(*command, check=False)
    assert refused.returncode == 1 and "--calibrate-on" in refused.stderr and "open.jsonnet" in refused.stderr
    run(*command, "--calibrate-on", str(trained / "calibration" / "trace.npz"))
    result = json.loads((tmp_path / "r").read_text())
    stored = json.loads((trained / "calibration" / "policy.json").read_text())
    assert result["thresholds"] == stored["thresholds"] and result["weights"] == pytest.approx(stored["weights"])
    assert result["calibration"]["samples"] == len(ExitTrace.load(trained / "calibration" / "trace.npz"))
    assert {"n", "num_exits", "metrics", "final_metrics", "warnings"} <= set(result)


def test_several_policies_make_one_table(trace_file: Path, tmp_path: Path) -> None:
    command = ["replay", str(trace_file), "--output-file", str(tmp_path / "r.json")]
    for name in ("full", "patience", "confidence"):
        (tmp_path / f"{name}.json").write_text(json.dumps(POLICIES[name]))
        command += ["--policy", str(tmp_path / f"{name}.json")]
    printed = run(*command).stdout
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    assert [result["name"] for result in results] == ["full", "patience", "confidence"]
    assert results[0]["layer_speedup"] == 1.0 and results[0]["metrics"] == results[0]["final_metrics"]
    for name in ("full", "patience", "confidence"):
        assert name in printed


def test_nan_logits_are_refused_with_sample_and_exit(tmp_path: Path) -> None:
    import numpy as np

    logits = np.zeros((3, 2, 2), dtype=np.float32)
    logits[1, 1, 0] = np.nan
    np.savez(tmp_path / "t.npz", logits=logits, labels=np.zeros(3, dtype=np.int64))
    (tmp_path / "p.json").write_text('{"type": "final"}')
    result = run("replay", str(tmp_path / "t.npz"), "--policy", str(tmp_path / "p.json"), check=False)
    assert result.returncode == 1 and "sample 1 at exit 2" in result.stderr and "Traceback" not in result.stderr


def test_traces_of_two_networks_are_not_mixed(trace_file: Path, tmp_path: Path) -> None:
    ExitTrace(torch.zeros(4, 5, 2), torch.zeros(4, dtype=torch.int64)).save(tmp_path / "other.npz")
    (tmp_path / "p.json").write_text('{"type": "beem"}')
    command = ["replay", str(trace_file), "--policy", str(tmp_path / "p.json")]
    result = run(*command, "--calibrate-on", str(tmp_path / "other.npz"), check=False)
    assert result.returncode == 1 and "other.npz has exits" in result.stderr
