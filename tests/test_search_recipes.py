"""`scripts/search_recipes`: trainings of plain and taught networks, and the tables of what is done."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

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
    args = argparse.Namespace(output=tmp_path, overrides=SIZES, device="cpu", lr=1e-3, batch_size=8, depth=6)
    trained = [script["train"](variant, task, 0, args) for task in tasks for variant in VARIANTS]
    taught = next(row for row in trained if row["variant"] == "small_distilled" and row["task"] == "rte")
    assert list(taught["accuracy"]) == ["2", "3", "4"]
    assert 0 < taught["cost"]["2"] < taught["cost"]["3"] < taught["cost"]["4"]
    assert {path.name for path in (tmp_path / "traces" / "small_distilled").iterdir()} == {"rte-0", "stsb-0"}
    rows = [{**row, "curves": script["curves_of"](row, tmp_path)} for row in trained]
    script["report"](rows, tasks)
    printed = capsys.readouterr().out
    # Plain networks are one curve, in the tasks that have labels: correlations have no rule.
    shown = re.search(r"│ plain +│ - +│ (\S+)", printed)
    points = [(*row["cost"].values(), *row["accuracy"].values()) for row in trained if row["task"] == "rte"]
    plain = [point for point, variant in zip(points, VARIANTS, strict=True) if variant.startswith("plain")]
    assert shown is not None and float(shown[1]) == pytest.approx(100 * script["at_cost"](plain, 1.5), abs=0.05)
    assert re.search(r"│ small_distilled +│ expected_gain", printed)
