from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.common.errors import DataError
from beem_plugin.common.registry import Params
from beem_plugin.data import DatasetReader, Vocabulary
from tests.tiny_captions import captioned_colours


def reader(**extra: Any) -> Any:
    return DatasetReader.from_params(Params({"type": "caption_text", "tokenizer": "words", **extra}))


def captions(instances: list[Any]) -> list[str]:
    return [instance.fields["caption"] for instance in instances]


def test_all_forms_of_files_are_read_together(tmp_path: Path) -> None:
    flickr = tmp_path / "Flickr8k.token.txt"
    flickr.write_text("1.jpg#0\tA dog , running .\n1.jpg#1\tThe dog\n2.jpg#0\tA cat\n")
    coco = tmp_path / "captions.json"
    coco.write_text(
        json.dumps(
            {"images": [{"id": 9, "file_name": "9.jpg"}], "annotations": [{"image_id": 9, "caption": "A  bird.\n"}]}
        )
    )
    plain = tmp_path / "plain.txt"
    plain.write_text("\nOne more\n")
    karpathy = captioned_colours(tmp_path / "colours", {"train": 1, "val": 1})
    source = ",".join(map(str, (flickr, coco, plain, karpathy)))
    one = reader()
    found = one.read(source)
    expected = ["a dog running", "the dog", "a cat", "a bird", "one more", "a red picture", "here everything is red"]
    assert captions(found) == expected
    assert [instance.id for instance in found[:4]] == ["1.jpg", "1.jpg", "2.jpg", "9.jpg"]
    batch = one.collator(Vocabulary([]), 0)(found, range(len(found)))
    assert "pixel_values" not in batch
    assert captions(reader(caption_form="raw").read(str(flickr)))[0] == "A dog , running ."


def test_captions_of_images_that_are_tested_on_are_left_out(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("1.jpg#0\ta dog\n2.jpg#0\ta cat\n000000000003.jpg#0\ta bird\ntest_0.png#0\ta fish\n")
    names = tmp_path / "names.txt"
    names.write_text("2.jpg\nCOCO_val2014_000000000003.jpg\n")
    split = captioned_colours(tmp_path / "colours", {"train": 1, "test": 1})
    assert captions(reader(exclude_images=[str(names), str(split)]).read(str(text))) == ["a dog"]


def test_the_holdout_is_cut_by_image(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("".join(f"{number}.jpg#{k}\tcaption {number} {k}\n" for number in range(20) for k in range(3)))
    one = reader(holdout_fraction=0.2)
    fit, holdout = one.read(f"{text}[fit]"), one.read(f"{text}[holdout]")
    assert len(holdout) == 12 and len(fit) == 48
    assert not {instance.id for instance in fit} & {instance.id for instance in holdout}


def test_missing_and_malformed_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none.txt: no such file"):
        reader().read(str(tmp_path / "none.txt"))
    path = tmp_path / "a.json"
    path.write_text('{"something": 1}')
    with pytest.raises(DataError, match="neither COCO's annotations nor a Karpathy split"):
        reader().read(str(path))


@pytest.mark.parametrize(
    "name, text",
    [
        ("kaggle.txt", 'image,caption\n1.jpg,a dog\n1.jpg,"a cat, too"\n2.jpg,a bird\n'),
        ("flickr30k.csv", "image_name| comment_number| comment\n"
         "1.jpg| 0| a dog\n1.jpg| 1| a cat, too\n2.jpg| 0| a bird\n"),
        ("names.txt", "1.jpg#0\ta dog\n1.jpg#1\ta cat, too\n2.jpg#0\ta bird"),
        ("list.json", '\n[{"image": "1.jpg", "caption": "a dog"},\n {"image": "1.jpg", "caption": "a cat, too"},\n'
         '{"image": "2.jpg", "caption": "a bird"}]'),
        ("lines.jsonl", '{"image": "1.jpg", "caption": "a dog"}\n{"image": "1.jpg", "caption": "a cat, too"}\n'
         '{"image": "2.jpg", "caption": "a bird"}\n'),
        ("coco.json", '\ufeff\n{"images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}],\n'
         '"annotations": [{"image_id": 1, "caption": "a dog"}, {"image_id": 1, "caption": "a cat, too"},'
         '{"image_id": 2, "caption": "a bird"}]}'),
    ],
)  # fmt: skip
def test_every_published_form_is_read(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    found = reader(caption_form="raw").read(str(path))
    assert captions(found) == ["a dog", "a cat, too", "a bird"]
    assert [instance.id for instance in found] == ["1.jpg", "1.jpg", "2.jpg"]
    (tmp_path / "out.txt").write_text("1.jpg\n")
    assert captions(reader(exclude_images=[str(tmp_path / "out.txt")]).read(str(path))) == ["a bird"]


def test_file_names_may_hold_blanks(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("my photo 0.jpg#0\ta dog\nmy photo 1.jpg#0\ta cat\n")
    (tmp_path / "out.txt").write_text("my photo 0.jpg\n")
    assert captions(reader(exclude_images=[str(tmp_path / "out.txt")]).read(str(path))) == ["a cat"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("1.jpg,a dog\n", "a.txt:1: found '1.jpg,a dog', allowed in the whole file"),
        ("a dog\n1.jpg\n", "a.txt:2: found '1.jpg'"),
        ("1.jpg#0\ta dog\na cat\n", "a.txt:2: found 'a cat'"),
        ("image_name| comment\n1.jpg| a | dog\n", "a.txt:2: found 3 columns, expected 2"),
        ('{"image": "1.jpg", "caption": "a dog"}\n{"image": "2.jpg"}\n', "a.txt:2: an image and a caption"),
        ('["a dog"]', "a.txt:1: one JSON object a line is expected, found str"),
        ('{"images":\n [', "a.txt: not valid JSON: .* at line 2"),
    ],
)
def test_other_forms_are_refused_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        reader().read(str(path))


def test_a_list_that_excludes_no_caption_is_an_error(tmp_path: Path) -> None:
    path, names = tmp_path / "a.txt", tmp_path / "names.txt"
    path.write_text("1.jpg#0\ta dog\n")
    names.write_text("2.jpg\n")
    with pytest.raises(DataError, match=r"exclude_images: none of the images in .*names.txt is in .*a.txt"):
        reader(exclude_images=[str(names)]).read(str(path))
