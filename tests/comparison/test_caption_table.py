from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.archival import Archive, load_archive
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.params import evaluate_document
from beem_plugin.common.registry import Params
from beem_plugin.comparison.caption_scores import markdown
from beem_plugin.comparison.caption_table import caption_table, table_cases
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.speed import exits_by_class
from beem_plugin.training.train import train_model
from tests.tiny_caption_configs import tiny
from tests.tiny_project import CONFIGS, run_script

ENTRIES: list[dict[str, Any]] = [
    {"name": "four", "policy": {"type": "fixed_exit", "exit": 4}},
    {"name": "never", "policy": {"type": "patience", "patience": 6}},
    {
        "name": "calm",
        "policy": {"type": "margin", "thresholds": {"type": "budget", "speedup": 1.2}},
        "calibration_target": "last_exit",
        "skipped_blocks": ["recompute", "copy"],
    },
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table") / "run"
    config = tiny(CONFIGS / "captions" / "shapes_beem.jsonnet")
    backbone = config["model"]["decoder"]["backbone"]
    backbone["decoder"] = {**backbone["decoder"], "n_layer": 6}
    train_model(Params(config), folder)
    return folder / "model.tar.gz"


@pytest.fixture(scope="module")
def archive(trained: Path) -> Archive:
    return load_archive(trained)


def test_rows_are_policies_of_one_network(archive: Archive) -> None:
    cases = table_cases(ENTRIES, archive, "policies")
    assert all(case.policy.is_calibrated for case in cases)
    rows = {row["name"]: row for row in caption_table(archive, "test", cases, ["bleu", "cider"], repeats=1)}
    assert list(rows) == ["full depth", "four", "never", "calm, recompute", "calm, copy"]
    full, four, never = rows["full depth"], rows["four"], rows["never"]
    assert full["layer_speedup"] == full["mac_speedup"] == full["measured_speedup"] == 1.0
    assert four["layer_speedup"] == pytest.approx(1.5) and four["decoder_mac_speedup"] > four["mac_speedup"] > 1
    # Asked at every exit, and nobody leaves: the same captions at a greater cost.
    assert never["metrics"] == full["metrics"] and never["same_as_full_depth"] == 1.0
    assert never["mac_speedup"] < 1 and never["cider_difference"] == 0.0
    assert rows["calm, copy"]["skipped_blocks"] == "copy"
    assert all(row["decoder_seconds"] > 0 and len(row["captions"]) == 8 for row in rows.values())
    assert [caption["image_id"] for caption in four["captions"]] == [
        caption["image_id"] for caption in full["captions"]
    ]
    # Special tokens in the middle of an untrained caption are no words.
    assert 0 < sum(found["tokens"] for found in four["by_word_class"].values()) <= sum(four["exit_histogram"])
    table = markdown(list(rows.values()))
    assert "| four |" in table and "1.50x" in table and "SPICE" not in table


def test_the_shipped_rows_can_all_be_fitted(archive: Archive) -> None:
    entries = evaluate_document(CONFIGS / "captions" / "policies" / "table.jsonnet")
    cases = table_cases(entries, archive, "table")
    assert len(cases) == 19 and all(case.policy.is_calibrated for case in cases)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({}, "expected a list"),
        ([{"name": "a"}], "entry 0: allowed: name and policy"),
        ([ENTRIES[0], ENTRIES[0]], "'four' twice"),
        ([{"name": "a", "policy": {"type": "fixed_exit", "exit": 9}}], "exit: found 9"),
    ],
)
def test_wrong_policies_are_named(archive: Archive, entries: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        table_cases(entries, archive, "policies")


def test_the_script_writes_three_files(trained: Path, tmp_path: Path) -> None:
    policies = tmp_path / "policies.json"
    policies.write_text(json.dumps(ENTRIES[:1]))
    options = ["--output", str(tmp_path / "out"), "--repeats", "0", "--metrics", "bleu"]
    printed = run_script("caption_table", str(trained), "test", "--policies", str(policies), *options)
    assert "| four |" in printed and (tmp_path / "out.md").read_text().strip() == printed.strip()
    assert [row["name"] for row in json.loads((tmp_path / "out.json").read_text())] == ["full depth", "four"]
    with (tmp_path / "out.csv").open() as file:
        assert [float(line["layer_speedup"]) for line in csv.DictReader(file)] == pytest.approx([1.0, 1.5])


def test_words_are_classed() -> None:
    tokenizer = CaptionTokenizer.from_params({"type": "words"})
    tokenizer.train(["a dog runs on the grass"])
    tokens = tokenizer.encode("a dog on the grass")[1:]
    ended = GeneratedCaption(tokens, [1, 4, 2, 1, 3, 2], [0.0] * 6, 0.0)
    cut = GeneratedCaption(tokens[:2], [2, 4], [0.0] * 2, 0.0)
    found = exits_by_class([ended, cut], tokenizer, 4)
    assert {name: value["exit_histogram"] for name, value in found.items()} == {
        "first": [1, 1, 0, 0],
        "function": [1, 1, 0, 0],
        "content": [0, 0, 1, 2],
        "end": [0, 1, 0, 0],
    }
    assert found["content"]["average_exit"] == pytest.approx(11 / 3) and found["end"]["tokens"] == 1
