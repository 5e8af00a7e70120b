from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.common.caption_metrics import score_captions
from beem_plugin.common.errors import DataError
from beem_plugin.common.registry import Params
from beem_plugin.data import Instance
from beem_plugin.tasks.caption_decoding import one_an_image
from beem_plugin.training.train import train_model
from tests.tiny_captions import train_config
from tests.tiny_project import run

EARLY = {"model.exit_policy": {"type": "patience", "patience": 1}, "evaluation": {"metrics": ["bleu", "cider"]}}


def evaluated(captioner: Path, *arguments: str, overrides: dict[str, Any]) -> dict[str, Any]:
    archive = str(captioner / "run" / "model.tar.gz")
    return json.loads(run("evaluate", archive, "test", "-o", json.dumps(overrides), *arguments).stdout)


def test_captions_are_scored_under_the_policy_and_at_full_depth(captioner: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    found = evaluated(captioner, "--predictions-output-file", str(results), overrides=EARLY)
    coco = json.loads(results.read_text())
    assert [set(line) for line in coco] == [{"image_id", "caption"}] * 4
    content = json.loads((captioner / "data" / "dataset_colours.json").read_text())
    references = {
        entry["imgid"]: [sentence["raw"] for sentence in entry["sentences"]]
        for entry in content["images"]
        if entry["split"] == "test"
    }
    assert [line["image_id"] for line in coco] == list(references)
    scores = score_captions({line["image_id"]: line["caption"] for line in coco}, references, ["bleu", "cider"])
    for name, value in scores.metrics.items():
        assert found[name] == pytest.approx(value)
        # This captioner says the same at every depth.
        assert found[f"full_depth_{name}"] == pytest.approx(value)
    assert found["same_as_full_depth"] == 1.0 and found["samples"] == 4
    assert sum(found["exit_histogram"]) == found["tokens"]
    assert found["layer_speedup"] == pytest.approx(3 / found["average_layer"])
    assert found["average_exit_by_word"]["first"] == 1.0
    assert found["exit_policy"]["type"] == "patience"
    assert found["caption_tokenizer"] in ("ptb", "simple")


@pytest.mark.parametrize(
    ("captions", "reason"), [([], "has no caption to be scored against"), (["...!"], "empty but for punctuation")]
)
def test_an_image_without_references_is_named_before_any_is_decoded(
    captioner: Path, tmp_path: Path, captions: list[str], reason: str
) -> None:
    data = captioner / "data"
    content = json.loads((data / "dataset_colours.json").read_text())
    entry = [entry for entry in content["images"] if entry["split"] == "test"][-1]
    entry.update(imgid=4711, sentences=[{"raw": text, "tokens": ["x"]} for text in captions])
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(content))
    overrides = {"dataset_reader.file": str(changed), "dataset_reader.image_dir": str(data / "images"), **EARLY}
    refused = run("evaluate", str(captioner / "run"), "test", "-o", json.dumps(overrides), check=False)
    assert refused.returncode == 1 and "test: image 4711" in refused.stderr and reason in refused.stderr
    assert "captions:" not in refused.stderr, "decoding had begun"


def test_full_depth_itself_is_decoded_once(captioner: Path) -> None:
    found = evaluated(captioner, overrides={"evaluation": {"metrics": ["bleu"]}})
    assert found["layer_speedup"] == 1.0 and not any(name.startswith("full_depth") for name in found)


def test_json_lines_tell_the_exit_of_every_word(captioner: Path, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    evaluated(captioner, "--predictions-output-file", str(path), overrides=EARLY)
    line = json.loads(path.read_text().splitlines()[0])
    assert [word["exit"] for word in line["words"]][:1] == [1] and len(line["references"]) == 2


def test_captions_are_cut_where_asked_and_that_is_said(captioner: Path) -> None:
    overrides = {**EARLY, "evaluation": {"metrics": ["bleu"], "max_length": 2, "full_depth": False}}
    found = evaluated(captioner, overrides=overrides)
    assert found["unfinished_captions"] == 4 and found["tokens"] == 8
    assert found["distinct_captions"] == 4 and found["repeating_captions"] == 0


def test_wrong_options_are_named(captioner: Path) -> None:
    archive = str(captioner / "run")
    for override, words in (
        ({"evaluation": {"metrics": ["spice"]}}, "SPICE: no spice_jars given"),
        ({"evaluation": {"spice_jars": "/nowhere"}}, "SPICE: spice_jars /nowhere lacks"),
        ({"evaluation": {"metrcs": []}}, "evaluation"),
    ):
        refused = run("evaluate", archive, "test", "-o", json.dumps(override), check=False)
        assert refused.returncode == 1 and words in refused.stderr
        assert "captions:" not in refused.stderr, "decoding had begun"
    refused = run("evaluate", archive, "test", "--engine", "compaction", check=False)
    assert refused.returncode == 1 and "--engine" in refused.stderr


def test_instances_of_captions_are_put_together_by_image() -> None:
    rows = [
        Instance({"caption": text, "image": "a"}, {"input_ids": [1]}, id=number)
        for number, text in ((1, "a"), (2, "b"), (1, "c"))
    ]
    found = one_an_image(rows, "val[captions]")
    assert [(instance.id, instance.fields["references"]) for instance in found] == [(1, ["a", "c"]), (2, ["b"])]


def test_the_archive_holds_tokenizer_and_image_processor(captioner: Path) -> None:
    with tarfile.open(captioner / "run" / "model.tar.gz") as archive:
        names = set(archive.getnames())
    assert {"tokenizer/tokenizer.json", "image_processor/preprocessor_config.json", "vocabulary/labels.txt"} <= names
    metrics = json.loads((captioner / "run" / "metrics.json").read_text())
    assert metrics["best_validation_token_accuracy"] > 0.9 and metrics["validation_loss"] > 0


@pytest.mark.parametrize("kind", ["caption_text", "shapes_captions"])
def test_training_on_captions_alone_and_on_shapes(kind: str, tmp_path: Path) -> None:
    text = tmp_path / "captions.txt"
    text.write_text("".join(f"a dog {word}\n" for word in ("runs", "sits", "eats", "jumps")))
    reader = {
        "caption_text": {"type": "caption_text", "tokenizer": "words"},
        "shapes_captions": {"type": "shapes_captions", "num_train": 20, "num_val": 4},
    }[kind]
    config = train_config(reader, epochs=1)
    if kind == "caption_text":
        config.update(train_data_path=str(text), validation_data_path=str(text))
    train_model(Params(config), tmp_path / "run")
    if kind == "shapes_captions":
        options = '{"evaluation": {"metrics": ["bleu"]}}'
        assert json.loads(run("evaluate", str(tmp_path / "run"), "val", "-o", options).stdout)["samples"] == 4


def test_one_id_of_two_images_is_refused() -> None:
    rows = [Instance({"references": ["x"], "image": name}, {"input_ids": [1]}, id=7) for name in ("a.png", "b.png")]
    with pytest.raises(DataError, match=r"test: found the id 7 of two images, a\.png and b\.png"):
        one_an_image(rows, "test")
