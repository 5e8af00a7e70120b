from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.archival import load_archive
from beem_plugin.commands import main
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.registry import Params
from beem_plugin.predictors import Predictor
from beem_plugin.training.train import train_model
from tests.tiny_captions import COLOURS, train_config
from tests.tiny_project import run


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_folder_of_images_is_captioned_in_order(captioner: Path, tmp_path: Path) -> None:
    images, output = captioner / "data" / "images", tmp_path / "out.jsonl"
    run("predict", str(captioner / "run" / "model.tar.gz"), str(images), "--output-file", str(output), "--silent")
    found = lines(output)
    assert [line["image"] for line in found] == sorted(map(str, images.glob("*.png")))
    for line in found:
        number = int(re.findall(r"_(\d+)\.png", line["image"])[0])
        assert list(COLOURS)[number % 4] in line["caption"]
        assert " ".join(word["word"] for word in line["words"]) == line["caption"]
        assert {word["layer"] for word in line["words"]} == {3}
        assert len(line["tokens"]) == len(line["exits"]) > len(line["words"])
        assert line["score"] == pytest.approx(sum(w["log_probability"] for w in line["words"]), abs=1.0)
        assert all(0 < math.exp(word["log_probability"]) <= 1 for word in line["words"])


def test_an_image_a_list_and_json_lines_are_captioned_alike(captioner: Path, tmp_path: Path) -> None:
    archive, image = str(captioner / "run"), captioner / "data" / "images" / "test_2.png"
    listed = tmp_path / "list.txt"
    listed.write_text(f"{image}\n")
    records = tmp_path / "in.jsonl"
    records.write_text(json.dumps({"image": str(image), "id": 7, "caption": "gold", "score": 1}) + "\n")
    found = [json.loads(run("predict", archive, str(source)).stdout) for source in (image, listed, records)]
    assert "blue" in found[0]["caption"]
    assert {line["caption"] for line in found} == {found[0]["caption"]}
    assert (found[2]["id"], found[2]["gold_caption"], found[2]["input_score"]) == (7, "gold", 1)
    read = run("predict", archive, "test", "--use-dataset-reader").stdout.splitlines()
    assert json.loads(read[2])["caption"] == found[0]["caption"] and "references" in json.loads(read[2])


def test_the_archive_needs_nothing_of_the_training(captioner: Path, tmp_path: Path) -> None:
    archive = tmp_path / "model.tar.gz"
    shutil.copy(captioner / "run" / "model.tar.gz", archive)
    shutil.copy(captioner / "data" / "images" / "test_0.png", tmp_path / "x.png")
    loaded = load_archive(archive, overrides={"dataset_reader.file": "gone.json", "dataset_reader.image_dir": "gone"})
    prediction = Predictor.from_archive(loaded).predict_json({"image": str(tmp_path / "x.png")})
    assert "red" in prediction["caption"]


def test_the_page_holds_every_image_and_its_words(captioner: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    images = captioner / "data" / "images"
    override = '{"model.exit_policy": {"type": "patience", "patience": 1}}'
    run("predict", str(captioner / "run"), str(images), "--html", str(page), "-o", override)
    text = page.read_text(encoding="utf-8")
    count = len(list(images.glob("*.png")))
    assert text.count("<figure>") == text.count("data:image/png;base64,") == count
    assert "exit 1 &middot; layer 1" in text and "exit 2 &middot; layer 3" in text
    colours = set(re.findall(r'class="word" style="background:([^;]+);', text))
    assert len(colours) == 2, "the words of this captioner leave at two depths"
    assert "http" not in text, "the page must show without a network"


def test_bad_images_are_named_with_their_line_or_passed_over(captioner: Path, tmp_path: Path) -> None:
    good = captioner / "data" / "images" / "test_0.png"
    cut = tmp_path / "cut.png"
    cut.write_bytes(good.read_bytes()[:50])
    (tmp_path / "no.png").write_text("no image")
    source = tmp_path / "in.txt"
    archive = str(captioner / "run")
    source.write_text(f"{good}\n{tmp_path / 'no.png'}\n")
    refused = run("predict", archive, str(source), check=False)
    assert refused.returncode == 1 and f"{source}:2: {tmp_path / 'no.png'}: not an image" in refused.stderr
    assert 'on_bad_image "skip"' in refused.stderr
    source.write_text(f"{cut}\n")
    refused = run("predict", archive, str(source), check=False)
    assert refused.returncode == 1 and f"{cut}: the image cannot be decoded" in refused.stderr
    assert 'on_bad_image "skip"' in refused.stderr
    source.write_text(f"{cut}\n{good}\n{tmp_path / 'gone.png'}\n")
    done = run("predict", archive, str(source), "-o", '{"dataset_reader.on_bad_image": "skip"}')
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["caption"] is None for line in found] == [True, False, True]
    assert "cut.png" in found[0]["error"] and "no such image" in found[2]["error"]


def test_what_was_captioned_before_a_damaged_image_is_written(captioner: Path, tmp_path: Path) -> None:
    good = [captioner / "data" / "images" / f"test_{number}.png" for number in range(4)]
    cut = tmp_path / "cut.png"
    cut.write_bytes(good[0].read_bytes()[:50])
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    # One window of two batches; the damage is in the second, behind a good image.
    source.write_text("".join(f"{path}\n" for path in [*good[:3], cut, good[3]]))
    archive = str(captioner / "run")
    refused = run(
        "predict", archive, str(source), "--batch-size", "2", "--output-file", str(output), "--silent", check=False
    )
    assert refused.returncode == 1 and f"{cut}: the image cannot be decoded" in refused.stderr
    assert f"3 predictions before it are in {output}.part" in refused.stderr
    assert [line["image"] for line in lines(tmp_path / "out.jsonl.part")] == list(map(str, good[:3]))


def test_a_whole_window_before_a_damaged_image_comes_out_in_parts(captioner: Path, tmp_path: Path) -> None:
    good = [captioner / "data" / "images" / f"test_{number}.png" for number in range(4)]
    cut = tmp_path / "cut.png"
    cut.write_bytes(good[0].read_bytes()[:50])
    predictor = Predictor.from_path(captioner / "run", batch_size=2)
    instances = predictor._batch_json_to_instances([{"image": str(path)} for path in [*good, cut]])
    found = []
    with pytest.raises(DataError, match="cut.png"):
        for part in predictor.predict_parts(instances):
            found.append([line["image"] for line in part])
    assert found == [list(map(str, good[:2])), list(map(str, good[2:])), []]


def test_an_image_is_named_once_and_without_a_line(captioner: Path, tmp_path: Path) -> None:
    missing = tmp_path / "nothere.jpg"
    refused = run("predict", str(captioner / "run"), str(missing), check=False)
    assert refused.returncode == 1 and refused.stderr.count("nothere.jpg") == 1
    assert f"error: {missing}: no such image" in refused.stderr
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "no.png").write_text("no image")
    refused = run("predict", str(captioner / "run"), str(folder), check=False)
    assert refused.returncode == 1 and f"error: {folder / 'no.png'}: not an image" in refused.stderr


def test_what_cannot_be_done_is_refused_before_the_work(captioner: Path, tmp_path: Path) -> None:
    images, output = str(captioner / "data" / "images"), tmp_path / "out.jsonl"
    for given, reason in (
        (["--engine", "single"], "error: --engine: a captioning model decodes by itself, allowed: none"),
        (["--html", str(tmp_path)], f"error: --html: {tmp_path}: is a directory"),
    ):
        command = ("predict", str(captioner / "run"), images, "--output-file", str(output), "--silent", *given)
        refused = run(*command, check=False)
        assert refused.returncode == 1 and reason in refused.stderr
        assert not list(tmp_path.glob("out*"))


def test_the_bar_counts_what_is_captioned(captioner: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from beem_plugin.common import progress

    counts: list[tuple[int, float]] = []

    class Bar(progress.tqdm):  # type: ignore[misc]
        def update(self, n: float | None = 1) -> bool | None:
            counts.append((self.total, n or 0))
            return super().update(n)

    monkeypatch.setattr(progress, "tqdm", Bar)
    given = ["predict", str(captioner / "run"), str(captioner / "data" / "images"), "--batch-size", "2", "--silent"]
    assert main(argv=[*given, "--output-file", str(tmp_path / "out.jsonl")]) == 0
    total = len(list((captioner / "data" / "images").glob("*.png")))
    assert {whole for whole, _ in counts} == {total} and sum(number for _, number in counts) == total
    assert len(counts) > 1


def test_inputs_that_are_no_images_are_refused(captioner: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    output = tmp_path / "out.jsonl"
    refused = run("predict", str(captioner / "run"), str(empty), "--output-file", str(output), check=False)
    assert refused.returncode == 1 and "no images in this folder" in refused.stderr
    assert not list(tmp_path.glob("out.jsonl*")) and "predictions before" not in refused.stderr
    records = tmp_path / "in.jsonl"
    records.write_text('{"picture": "a.png"}\n')
    refused = run("predict", str(captioner / "run"), str(records), check=False)
    assert refused.returncode == 1 and f"{records}:1: the input lacks 'image'" in refused.stderr


def test_a_classifier_captions_nothing(trained: Path) -> None:
    with pytest.raises(ConfigurationError, match="predictor captioner: found a model MultiExitClassifier"):
        Predictor.from_path(trained, "captioner")


def test_a_bad_scene_names_its_line_and_keeps_what_came_before(tmp_path: Path) -> None:
    reader = {"type": "shapes_captions", "num_train": 20, "num_val": 4}
    train_model(Params(train_config(reader, epochs=1)), tmp_path / "run")
    shape = {"size": "small", "colour": "red", "shape": "circle", "x": 0.5, "y": 0.5}
    scenes = [{"shapes": [shape], "relation": None}, {"shapes": [{**shape, "colour": "pink"}], "relation": None}]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"scene": scene}) + "\n" for scene in scenes))
    refused = run("predict", str(tmp_path / "run"), str(source), "--output-file", str(output), "--silent", check=False)
    assert refused.returncode == 1 and f"{source}:2: scene: colour: found 'pink'" in refused.stderr
    assert [line["scene"] for line in lines(tmp_path / "out.jsonl.part")] == scenes[:1]
    # What the message for an image file advises works.
    source.write_text(json.dumps({"image": str(tmp_path / "gone.png")}) + "\n")
    refused = run("predict", str(tmp_path / "run"), str(source), check=False)
    assert f"{source}:1: " in refused.stderr and 'on_bad_image "skip"' in refused.stderr
    done = run("predict", str(tmp_path / "run"), str(source), "-o", '{"dataset_reader.on_bad_image": "skip"}')
    assert json.loads(done.stdout)["caption"] is None
