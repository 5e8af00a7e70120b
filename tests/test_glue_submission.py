"""Submissions to GLUE's site, checked by a reading of the files that shares no code with what writes them."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.common.params import load_config
from beem_plugin.dataset_readers.glue_tasks import GLUE_TASKS
from beem_plugin.evaluation import glue_submission
from beem_plugin.evaluation.glue_submission import written
from beem_plugin.training.train import train_model
from tests.tiny_project import CONFIGS, run, sentences

WORDS = {"entailment", "not_entailment"}
# File: rows, and the values that the site takes; of STS-B a range.
DEMANDED: dict[str, tuple[int, set[str] | tuple[float, float]]] = {
    "CoLA": (1063, {"0", "1"}),
    "SST-2": (1821, {"0", "1"}),
    "MRPC": (1725, {"0", "1"}),
    "QQP": (390965, {"0", "1"}),
    "STS-B": (1379, (0.0, 5.0)),
    "MNLI-m": (9796, {"entailment", "neutral", "contradiction"}),
    "MNLI-mm": (9847, {"entailment", "neutral", "contradiction"}),
    "QNLI": (5463, WORDS),
    "RTE": (3000, WORDS),
    "WNLI": (146, {"0", "1"}),
    "AX": (1104, {"entailment", "neutral", "contradiction"}),
}


def check(path: Path) -> dict[str, list[str]]:
    """The predictions of a zip, file by file, after all that the site refuses was refused."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == sorted(f"{name}.tsv" for name in DEMANDED)  # no folder in it
        for name, (count, allowed) in DEMANDED.items():
            lines = io.TextIOWrapper(archive.open(f"{name}.tsv"), encoding="utf-8", newline="")
            rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
            assert rows[0] == ["index", "prediction"]
            assert [row[0] for row in rows[1:]] == [str(number) for number in range(count)], name
            values = [row[1] for row in rows[1:]]
            if isinstance(allowed, set):
                assert set(values) <= allowed, name
            else:
                assert all(allowed[0] <= float(value) <= allowed[1] for value in values), name
            found[name] = values
    return found


@pytest.fixture(scope="module")
def wnli(tiny_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wnli") / "run"
    overrides = {
        "trainer.num_epochs": 4,
        "trainer.cuda_device": -1,
        "trainer.optimizer.lr": 2e-3,
        "model.exit_policy": {"type": "max_probability", "thresholds": {"type": "budget", "speedup": 1.2}},
    }
    train_model(load_config(CONFIGS / "wnli_beem.jsonnet", overrides, ext_vars=tiny_environment), directory)
    return directory


def test_the_sites_files(
    tmp_path: Path, tiny_environment: dict[str, str], wnli: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = Path(tiny_environment["GLUE_DIR"]) / "WNLI" / "test.tsv"
    rows = sentences(146, seed=5)
    lines = [f"{number}\t{text}\tit is good" for number, (text, _) in enumerate(rows)]
    test.write_text("\n".join(["index\tsentence1\tsentence2", *lines]) + "\n")
    said = run("glue-submission", str(wnli), "--output", str(tmp_path / "sent")).stdout
    found = check(tmp_path / "sent" / "submission.zip")
    assert (tmp_path / "sent" / "WNLI.tsv").read_text().splitlines()[1:] == [
        f"{number}\t{value}" for number, value in enumerate(found["WNLI"])
    ]
    assert set(found["WNLI"]) == {"0", "1"}
    # What was submitted scores what `evaluate` measures on the same rows with their labels.
    labelled = tmp_path / "labelled.tsv"
    lines = [f"{number}\t{text}\tit is good\t{label}" for number, (text, label) in enumerate(rows)]
    labelled.write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *lines]) + "\n")
    run("evaluate", str(wnli), str(labelled), "--output-file", str(tmp_path / "metrics.json"))
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    right = sum(int(value) == label for value, (_, label) in zip(found["WNLI"], rows, strict=True))
    assert metrics["accuracy"] == pytest.approx(right / 146)
    assert f"{metrics['layer_speedup']:.2f}x" in said and "no archive for CoLA.tsv, SST-2.tsv" in said
    twice = run("glue-submission", str(wnli), str(wnli), "--output", str(tmp_path / "sent"), check=False)
    assert twice.returncode == 1 and "WNLI.tsv is another archive's as well" in twice.stderr
    test.write_text("\n".join(test.read_text().splitlines()[:100]) + "\n")
    monkeypatch.setattr(glue_submission, "predict_file", None)  # refused before anything is predicted
    refused = run("glue-submission", str(wnli), "--output", str(tmp_path / "sent"), check=False)
    assert refused.returncode == 1 and "test of wnli has 99 rows, allowed: GLUE's 146" in refused.stderr


def test_predictions_are_written_as_words_numbers_and_scores() -> None:
    labels = [{"label": "not_entailment"}, {"label": "entailment"}]
    assert written(GLUE_TASKS["rte"], labels) == ["not_entailment", "entailment"]
    assert written(GLUE_TASKS["wnli"], labels) == ["0", "1"]
    assert written(GLUE_TASKS["stsb"], [{"value": -0.2}, {"value": 5.31}, {"value": 2.5}]) == [
        "0.000",
        "5.000",
        "2.500",
    ]


def test_the_output_is_a_folder(wnli: Path) -> None:
    refused = run("glue-submission", str(wnli), "--output", str(wnli / "metrics.json"), check=False)
    assert refused.returncode == 1 and "is a file, allowed: a folder" in refused.stderr
