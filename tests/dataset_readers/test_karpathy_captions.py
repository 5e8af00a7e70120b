from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.common.errors import BeemError, ConfigurationError, DataError
from beem_plugin.common.registry import Lazy, Params
from beem_plugin.data import DataLoader, DatasetReader, Vocabulary
from beem_plugin.data.image_processor import ImageProcessor
from tests.tiny_captions import captioned_colours


def reader(file: Path, **extra: Any) -> Any:
    block = {"type": "karpathy_captions", "file": str(file), "tokenizer": "words", "image_processor": {"size": 8}}
    return DatasetReader.from_params(Params({**block, **extra}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return captioned_colours(tmp_path)


def test_training_is_a_caption_an_instance_with_restval(file: Path) -> None:
    found = reader(file).read("train")
    assert len(found) == 2 * (12 + 4)
    assert found[0].fields == {
        "image": str(file.parent / "images" / "train_0.png"),
        "image_id": 0,
        "caption": "a red picture",
    }
    assert found[1].fields["caption"] == "here everything is red"


def test_other_data_are_an_image_an_instance_with_all_references(file: Path) -> None:
    for source in ("val", "validation", "test"):
        found = reader(file).read(source)
        assert len(found) == 4
        assert found[0].fields["references"] == ["A red picture .", "Here, everything is red!"]
    assert len(reader(file).read("val[captions]")) == 8
    assert len(reader(file).read("train[images]")) == 16


def test_the_holdout_shares_no_image_with_the_rest(file: Path) -> None:
    one = reader(file, holdout_fraction=0.25)
    fit, holdout = one.read("train[fit]"), one.read("train[holdout]")
    assert len(holdout) == 8 and len(fit) == 24
    assert not {instance.id for instance in fit} & {instance.id for instance in holdout}


def test_the_decoder_learns_tokens_or_the_raw_caption(file: Path) -> None:
    assert reader(file, caption_form="raw").read("train")[1].fields["caption"] == "Here, everything is red!"
    with pytest.raises(ConfigurationError, match="caption_form: found 'row', allowed: raw"):
        reader(file, caption_form="row")


def test_coco_numbers_and_folders_are_used(file: Path) -> None:
    content = json.loads(file.read_text())
    for entry in content["images"]:
        entry["cocoid"] = entry["imgid"] + 1000
        entry["filepath"] = "train2014"
    file.write_text(json.dumps(content))
    shutil.move(file.parent / "images", file.parent / "all")
    (file.parent / "images").mkdir()
    shutil.move(file.parent / "all", file.parent / "images" / "train2014")
    found = reader(file).read("train")[0]
    assert (found.id, found.fields["image"]) == (1000, str(file.parent / "images" / "train2014" / "train_0.png"))


def test_the_tokenizer_learns_from_training_captions_whatever_is_read_first(file: Path) -> None:
    first, second = reader(file), reader(file)
    first.read("test")
    second.read("train")
    assert first.tokenizer.encode("a red picture") == second.tokenizer.encode("a red picture")


def test_missing_images_are_named_or_left_out(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    (file.parent / "images" / "train_3.png").unlink()
    with pytest.raises(DataError, match=r"1 of 16 images cannot be used: .*train_3.png: no such image.*on_bad_image"):
        reader(file).read("train")
    with caplog.at_level(logging.WARNING):
        assert len(reader(file, on_bad_image="skip").read("train")) == 30
    assert "train_3.png" in caplog.text


def test_a_damaged_image_is_named_by_the_worker_that_opens_it(file: Path) -> None:
    path = file.parent / "images" / "val_0.png"
    path.write_bytes(path.read_bytes()[:50])
    one = reader(file)
    instances = one.read("val")
    vocab = Vocabulary([])
    loader = Lazy(DataLoader, params=Params({"batch_size": 2, "num_workers": 1})).construct(
        instances=instances, vocab=vocab, pad_token_id=0, collator=one.collator(vocab, 0)
    )
    with pytest.raises(BeemError) as caught:
        list(loader)
    assert str(caught.value).startswith(f"{path}: ")
    assert [instance.id for instance in reader(file, on_bad_image="skip").read("val")] == [17, 18, 19]


def test_batches_have_pixels_in_workers(file: Path) -> None:
    one = reader(file)
    instances = one.read("train")
    vocab = Vocabulary.from_instances(instances, one.label_names)
    loader = Lazy(DataLoader, params=Params({"batch_size": 4, "num_workers": 1})).construct(
        instances=instances, vocab=vocab, pad_token_id=0, training=True, collator=one.collator(vocab, 0)
    )
    batch = next(iter(loader))
    row = int(batch["index"][0])
    expected = ImageProcessor(size=8)(one.open_image(instances[row].fields))
    assert batch["pixel_values"][0].equal(expected)
    assert batch["input_ids"][0, 0] == one.tokenizer.bos_token_id


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "lacks the list 'images'"),
        ('{"images": [{"filename": "a"}]}', "image 0: lacks 'split'"),
        ('{"images": [{"filename": "a", "split": "train", "imgid": 1}]}', "image 0: .*'sentences'"),
        ('{"images": [{"filename": "a", "split": "test", "imgid": 1, "sentences": []}]}', "no image of split 'train'"),
    ],
)
def test_a_malformed_file_is_named(file: Path, content: str, words: str) -> None:
    file.write_text(content)
    with pytest.raises(DataError, match=f"{file}.*{words}"):
        reader(file).read("train")


def test_unknown_splits_and_folders_are_refused(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="found 'tset', allowed: test"):
        reader(file).read("tset")
    with pytest.raises(ConfigurationError, match="image_dir: .*nowhere is no folder"):
        reader(file, image_dir=str(file.parent / "nowhere")).read("train")
    with pytest.raises(ConfigurationError, match="on_bad_image"):
        reader(file, on_bad_image="ignore")


def test_images_that_are_kept_are_decoded_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = reader(file, keep_images=True)
    collate = read.collator(Vocabulary([]), 0)
    rows = read.read("train[images]")
    first = collate(rows)["pixel_values"]
    monkeypatch.setattr(collate, "open_image", None)
    assert collate(rows[::-1])["pixel_values"].equal(first.flip(0))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"split": None}, r"split: found None, allowed: a string"),
        ({"split": ["train"]}, r"split: found \['train'\], allowed: a string"),
        ({"cocoid": [1]}, r"cocoid: found \[1\], allowed: a whole number or a string"),
        ({"imgid": True}, r"imgid: found True"),
        ({"sentences": [{"raw": "A cat.", "tokens": "a cat"}]}, r"tokens: found 'a cat', allowed: a list of words"),
        ({"sentences": [{"raw": "A cat.", "tokens": ["a", 1]}]}, r"tokens: found \['a', 1\]"),
        ({"sentences": {"raw": "A cat."}}, r"sentences: found .*, allowed: a list"),
    ],
)
def test_a_garbled_entry_is_named_with_its_file_and_image(file: Path, keys: dict[str, Any], words: str) -> None:
    content = json.loads(file.read_text())
    content["images"][2].update(keys)
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"{file}: image 2 \(train_2\.png\): {words}"):
        reader(file).read("train")


def test_one_number_of_two_images_is_refused_where_captions_are_judged_by_it(file: Path) -> None:
    content = json.loads(file.read_text())
    for entry in content["images"]:
        entry["cocoid"] = 7 if entry["filename"] in ("test_1.png", "test_3.png") else entry["imgid"] + 1000
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"{file}: image \d+: cocoid: found 7 of two images, .*test_1.* and .*test_3"):
        reader(file).read("test")
    assert len(reader(file).read("val")) == 4
