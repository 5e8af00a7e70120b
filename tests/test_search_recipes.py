"""`scripts/search_recipes`: trainings of plain and taught networks, and the tables of what is done."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ablation_in_process import train_in_process
from tests.tiny_project import load_script, write_backbone, write_glue

VARIANTS = ("plain6", "plain2", "plain3", "plain4", "small_distilled")
SIZES = '{"dataset_reader.max_instances": 32, "trainer.num_epochs": 1}'


def test_recipes_are_trained_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_script("search_recipes")
    monkeypatch.setenv("GLUE_DIR", str(write_glue(tmp_path / "glue", train=60, dev=20)))
    monkeypatch.setenv("BEEM_BACKBONE", str(write_backbone(tmp_path / "encoder", layers=6)))
    tasks = ["rte", script["REGRESSION"]]
    trained = train_in_process(monkeypatch)

    def run(*arguments: str) -> list[dict[str, Any]]:
        options = ["--output", str(tmp_path), "--overrides", SIZES, "--device", "cpu", "--lr", "1e-3", "--depth", "6"]
        options += ["--batch-size", "8", "--seeds", "1", "--tasks", *tasks, "--no-report", *arguments]
        monkeypatch.setattr(sys, "argv", ["search_recipes", *options])
        script["main"]()
        return [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]

    rows = run("--variants", *VARIANTS[1:])  # the teacher is trained unasked
    assert len(trained) == len(rows) == 2 * len(VARIANTS) == len(run("--variants", *VARIANTS)) and len(trained) == 10
    taught = next(row for row in rows if row["variant"] == "small_distilled" and row["task"] == "rte")
    assert list(taught["accuracy"]) == ["2", "3", "4"]
    assert 0 < taught["cost"]["2"] < taught["cost"]["3"] < taught["cost"]["4"]
    assert {path.name for path in (tmp_path / "traces" / "small_distilled").iterdir()} == {"rte-0", "stsb-0"}
    kept = {path.name.split("-")[0] for path in (tmp_path / "runs" / "trainings").iterdir()}
    assert kept == {"plain6_rte", "plain6_stsb"}, "teachers"
    capsys.readouterr()
    script["report"]([{**row, "curves": script["curves_of"](row, tmp_path)} for row in rows], tasks)
    printed = capsys.readouterr().out
    # Plain networks are one curve, in the tasks that have labels: correlations have no rule.
    shown = re.search(r"│ plain +│ (\S+)", printed)
    plain = [row for row in rows if row["task"] == "rte" and row["variant"].startswith("plain")]
    points = [(*row["cost"].values(), *row["accuracy"].values()) for row in plain]
    assert shown is not None and float(shown[1]) == pytest.approx(100 * script["at_cost"](points, 1.5), abs=0.05)
    assert re.search(r"│ small_distilled, expected_gain +│", printed)
