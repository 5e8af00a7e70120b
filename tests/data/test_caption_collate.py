from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from PIL import Image

from beem_plugin.data import Instance
from beem_plugin.data.caption_collate import CaptionCollator
from beem_plugin.data.image_processor import ImageProcessor
from beem_plugin.data.images import BadImageError


def opened(fields: Mapping[str, Any]) -> Image.Image:
    if fields["grey"] is None:
        raise BadImageError("x.jpg: cannot be decoded")
    return Image.new("RGB", (9, 9), (fields["grey"],) * 3)


def instances(*rows: tuple[list[int], int | None]) -> list[Instance]:
    return [Instance({"grey": grey}, {"input_ids": ids}) for ids, grey in rows]


def test_a_batch_is_padded_and_masked_where_padding_is_the_end_token() -> None:
    collator = CaptionCollator(0, ImageProcessor(size=4), opened)
    batch = collator(instances(([0, 5, 6, 0], 255), ([0, 5, 0], 0)), [7, 3])
    assert batch["input_ids"].tolist() == [[0, 5, 6, 0], [0, 5, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch["index"].tolist() == [7, 3]
    assert batch["pixel_values"].shape == (2, 3, 4, 4) and batch["pixel_values"].dtype == torch.float32
    assert batch["pixel_values"][0].unique().tolist() == [1.0]
    assert "label" not in batch


def test_an_image_of_several_captions_is_opened_once() -> None:
    opened_files = []

    def open_once(fields: Mapping[str, Any]) -> Image.Image:
        opened_files.append(fields["image"])
        return Image.new("RGB", (9, 9), (len(opened_files),) * 3)

    rows = [Instance({"image": name}, {"input_ids": [1, 5, 2]}) for name in ("b", "a", "b", "c", "a")]
    batch = CaptionCollator(0, ImageProcessor(size=4), open_once)(rows)
    assert opened_files == ["b", "a", "c"] and len(batch["pixel_values"]) == 3
    assert batch["image_of_row"].tolist() == [0, 1, 0, 2, 1]
    assert "image_of_row" not in CaptionCollator(0, ImageProcessor(size=4), open_once)(rows[:2])


def test_captions_alone_have_no_pixels() -> None:
    assert set(CaptionCollator(0)(instances(([1, 2], 0)))) == {"input_ids", "attention_mask", "index"}


def test_a_bad_image_is_an_error_or_takes_no_part(caplog: pytest.LogCaptureFixture) -> None:
    rows = instances(([1, 5, 2], 255), ([1, 5, 6, 2], None))
    with pytest.raises(BadImageError, match=r"x\.jpg"):
        CaptionCollator(0, ImageProcessor(size=4), opened)(rows)
    with caplog.at_level(logging.WARNING):
        batch = CaptionCollator(0, ImageProcessor(size=4), opened, skips_bad_images=True)(rows)
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [0, 0, 0, 0]]
    assert len(batch["pixel_values"]) == 2
    assert "x.jpg" in caplog.text
