"""Figures of stored traces stay the same to the last digit: those of the scripts behind the README's tables as well."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.archival import load_archive
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.comparison.caption_table import decoded_rows, table_cases
from tests.tiny_project import ROOT, load_script, run

FOLDER = ROOT / "tests" / "fixtures" / "figures"
ARCHIVES = ROOT / "tests" / "fixtures" / "release_0_1"
EXPECTED: dict[str, Any] = json.loads(gzip.decompress((FOLDER / "expected.json.gz").read_bytes()))
CAPTIONS: dict[str, Any] = json.loads((FOLDER / "captions.json").read_text())
NAMES = ("mrpc-0", "rte-0", "rte-1")

REWORDED = ("nobody can leave before", "no sample can exit before")
"""A message of release 0.1 and its present wording."""

ADDED = re.compile(r", standard error [\d.]+(; within noise)?(?=\))")
"""What a message of release 0.1 did not say."""


def assert_holds(found: Any, expected: Any, place: str = "") -> None:
    """
    `found` has all of `expected`, to the last digit; further keys are allowed. Bounds of intervals are a library's
    inverse of a distribution, whose last digits differ by its version.
    """
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_holds(found[key], value, f"{place}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_holds(one, other, f"{place}.{index}")
    elif isinstance(expected, str):
        assert ADDED.sub("", found) == expected.replace(*REWORDED), place
    elif ".interval." in place and expected is not None:
        assert found == pytest.approx(expected, rel=1e-9), place
    else:
        assert found == expected, place


def traces(part: str, names: tuple[str, ...] = NAMES) -> list[str]:
    return [str(FOLDER / "seeds" / name / f"{part}.npz") for name in names]


@pytest.fixture
def variants(tmp_path: Path) -> str:
    (tmp_path / "variants.json").write_text(json.dumps(EXPECTED["variants"]))
    return str(tmp_path / "variants.json")


def test_replay_of_grids_on_several_traces(tmp_path: Path, variants: str) -> None:
    files = ["--output-file", str(tmp_path / "r.json"), "--csv", str(tmp_path / "r.csv")]
    files += ["--table", str(tmp_path / "r.tex")]
    run("replay", *traces("validation"), "--policies", variants, *files, "--calibrate-on", *traces("calibration"))
    assert_holds(json.loads((tmp_path / "r.json").read_text()), EXPECTED["replay"])
    with (tmp_path / "r.csv").open(newline="") as file:
        assert_holds(list(csv.DictReader(file)), EXPECTED["replay_csv"])
    assert "\\toprule" in (tmp_path / "r.tex").read_text()


def test_replay_of_swept_curves(tmp_path: Path, variants: str) -> None:
    files = ["--calibrate-on", *traces("calibration", NAMES[:1]), "--output-file", str(tmp_path / "r.json")]
    run("replay", *traces("validation", NAMES[:1]), "--policies", variants, "--curve", "--metric", "matthews", *files)
    assert_holds(json.loads((tmp_path / "r.json").read_text()), EXPECTED["replay_curve"])


def test_calibration_report(tmp_path: Path, without_plots: None) -> None:
    (tmp_path / "p.json").write_text(json.dumps(EXPECTED["policy"]))
    trace = traces("calibration", NAMES[:1])[0]
    run("calibrate", "--trace", trace, "--policy", str(tmp_path / "p.json"), "--report-dir", str(tmp_path))
    assert_holds(json.loads((tmp_path / "report.json").read_text()), EXPECTED["report"])


def test_table_of_policies() -> None:
    """The script's curves and strategies but for `joint`, whose search takes long."""
    policies = load_script("compare_policies")
    policies["JOINT"], policies["GUARDED"] = (), ("beem-c", "max_probability")
    del policies["STRATEGIES"]["joint, 2x"]
    calibration, validation = (ExitTrace.load(traces(part, ("rte-0",))[0]) for part in ("calibration", "validation"))
    curves = policies["compare"](calibration, validation, False)
    before = {row["rule"]: row for row in EXPECTED["policies"]["curves"] if not row["rule"].endswith(", joint")}
    assert list(curves) == list(before)
    for rule, curve in curves.items():
        assert curve.area() == before[rule]["area"], rule
        for speed in (1.5, 2.0, 2.5):
            assert 100 * curve.at(speed) == before[rule][f"at_{speed}"], rule
    kept = {(row["strategy"], row["rule"]): row for row in EXPECTED["policies"]["promises"]}
    for row in policies["promises"](calibration, validation):
        assert_holds({"task": "rte", "seed": "0", **row}, kept[row["strategy"], row["rule"]])


def test_differences_of_policies_are_paired_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = load_script("compare_policies")
    policies["SWEPT"] = ["max_probability", "entropy", "expected_gain"]
    folders = [str(FOLDER / "seeds" / name) for name in NAMES[1:]]
    monkeypatch.setattr(sys, "argv", ["", *folders, "--cross-validate", "--output", str(tmp_path / "p")])
    policies["main"]()
    found = json.loads((tmp_path / "p.json").read_text())
    areas = {
        row["rule"]: [one["area"] for one in found["curves"] if one["rule"] == row["rule"]] for row in found["curves"]
    }
    best = areas[found["best_published"]["rte"]]
    lost = sum(areas["expected_gain"][seed] - best[seed] for seed in range(2)) / 2
    paired = found["paired"]["expected_gain"]
    assert paired["pairs"] == 2 and paired["difference"] == pytest.approx(lost)
    assert None in areas["patience"] and "patience" not in found["paired"]


def test_captions_under_policies() -> None:
    """Counts and captions; scores depend on whether Java is installed."""
    archive = load_archive(ARCHIVES / "captioner.tar.gz")
    rows, references = decoded_rows(archive, "test", table_cases(CAPTIONS["entries"], archive, "entries"))
    found = [{**row, "captions": [caption["caption"] for caption in row["captions"]]} for row in rows]
    assert_holds(found, CAPTIONS["rows"])
    assert len(references) == len(found[0]["captions"])


@pytest.mark.parametrize(("model", "data"), [("classifier", str(ARCHIVES / "texts.csv")), ("captioner", "test")])
def test_counts_of_a_benchmark(tmp_path: Path, without_plots: None, model: str, data: str) -> None:
    files = [str(ARCHIVES / f"{model}.tar.gz"), data, "--output-file", str(tmp_path / "b.json")]
    run("benchmark", *files, "--batch-sizes", "4", "--repeats", "1")
    assert_holds(json.loads((tmp_path / "b.json").read_text())["counted"], CAPTIONS["counted"][model])
