from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.common.errors import DataError
from beem_plugin.comparison.caption_scores import (
    CONTROL,
    compared_rows,
    read_caption_runs,
    scores_table,
)
from tests.tiny_project import run_script

REFERENCES = [
    ["a dog runs on the grass", "a brown dog runs"],
    ["two men sit on a bench"],
    ["a child plays with a ball"],
]
RIGHT = ["a dog runs on the grass", "two men sit on a bench", "a child plays with a ball"]


def row(name: str, captions: list[str], **numbers: float) -> dict[str, Any]:
    made = [{"image_id": number, "caption": caption} for number, caption in enumerate(captions)]
    speeds = {"layer_speedup": 1.0, "mac_speedup": 1.0, "decoder_mac_speedup": 1.0, **numbers}
    gmacs = {"images": 10.0, "cross": 2.0, "blocks": 4.0, "skipped": 0.0, "heads": 1.0}
    return {"name": name, **speeds, "gmacs": gmacs, "distinct_captions": len(set(captions)), "captions": made}


def write(folder: Path, method: str, layers: int, rows: list[dict[str, Any]], seed: int = 0) -> None:
    run = {"method": method, "seed": seed, "exit_layers": list(range(1, layers + 1))}
    run |= {"rows": rows, "references": REFERENCES}
    path = folder / method / str(seed) / "captions.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(run))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "beem", 4, [row("full depth", RIGHT), row("BEEM-A", [*RIGHT[:2], "a ball"], layer_speedup=1.5)])
    write(tmp_path, "final", 4, [row("full depth", ["a dog runs on the grass", "two men", "a child plays"])])
    write(tmp_path, "reduced", 3, [row("full depth", RIGHT)])
    return tmp_path


def test_rows_are_compared_with_their_own_full_depth_and_with_no_exits(folder: Path) -> None:
    runs = read_caption_runs(folder)
    assert [run["method"] for run in runs] == ["final", "reduced", "beem"]
    rows = {(found["method"], found["name"]): found for found in compared_rows(runs, ["bleu", "cider"])}
    full, left = rows["beem", "full depth"], rows["beem", "BEEM-A"]
    assert full["full_difference"] == 0.0 and left["full_difference"] < 0 < full["final_difference"]
    assert left["metrics"]["cider"] - full["metrics"]["cider"] == pytest.approx(left["full_difference"])
    assert left["layer_speedup"] == 1.5 and left["seeds"] == 1
    # Captions of other images have the same words and say nothing true.
    assert rows["final", CONTROL]["metrics"]["cider"] < rows["final", "full depth"]["metrics"]["cider"]
    # Three of four blocks: faster than the network that the others are compared with, by what blocks cost.
    shorter = rows["reduced", "full depth"]
    assert shorter["layer_speedup"] == pytest.approx(4 / 3)
    assert shorter["decoder_mac_speedup"] == pytest.approx((4 / 3 * 6 + 1) / 7)
    assert shorter["mac_speedup"] == pytest.approx((10 + 4 / 3 * 6 + 1) / 17)
    table = scores_table(list(rows.values()), method="training", name="rule").to_markdown()
    assert "| beem | BEEM-A |" in table and "1.50x" in table and "METEOR" not in table


def test_seeds_are_averaged(folder: Path) -> None:
    write(folder, "beem", 4, [row("BEEM-A", RIGHT, layer_speedup=2.5)], seed=1)
    rows = compared_rows(read_caption_runs(folder), ["cider"])
    found = next(one for one in rows if one["name"] == "BEEM-A")
    assert found["seeds"] == 2 and found["layer_speedup"] == 2.0


def test_files_that_are_missing_or_garbled_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no METHOD/SEED/captions.json"):
        read_caption_runs(tmp_path)
    path = tmp_path / "beem" / "0" / "captions.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"method": "beem"}')
    with pytest.raises(DataError, match="lacks seed, exit_layers, rows, references"):
        read_caption_runs(tmp_path)


def test_the_script_writes_three_files(folder: Path, tmp_path: Path) -> None:
    options = ["--output", str(tmp_path / "out"), "--metrics", "bleu", "cider"]
    printed = run_script("score_captions", str(folder), *options)
    assert "| final | full depth |" in printed and (tmp_path / "out.md").read_text() in printed
    assert len(json.loads((tmp_path / "out.json").read_text())) == 5
    with (tmp_path / "out.csv").open() as file:
        assert [line["method"] for line in csv.DictReader(file)] == ["final", "final", "reduced", "beem", "beem"]
