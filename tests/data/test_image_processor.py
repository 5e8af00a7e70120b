from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.data.image_processor import ImageProcessor

SWIN = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 32, "width": 32},
    "resample": 3,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
DINO = {
    **SWIN,
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": 36},
    "do_center_crop": True,
    "crop_size": {"height": 28, "width": 28},
    "do_convert_rgb": True,
}


def published(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("config", [SWIN, DINO], ids=["squeezed", "cropped"])
@pytest.mark.parametrize("size", [(50, 41), (33, 70), (32, 32)])
def test_it_does_what_the_processor_of_transformers_does(
    tmp_path: Path, config: dict[str, Any], size: tuple[int, int]
) -> None:
    pil = "pil_vit" if config is SWIN else "pil_bit"
    name = "ViTImageProcessorPil" if config is SWIN else "BitImageProcessorPil"
    family = pil.removeprefix("pil_")
    module = pytest.importorskip(f"transformers.models.{family}.image_processing_{pil}")
    theirs = getattr(module, name).from_pretrained(str(published(tmp_path, config)))
    image = Image.effect_noise(size, 90).convert("RGB")
    expected = torch.as_tensor(theirs(image, return_tensors="pt")["pixel_values"][0])
    found = ImageProcessor(model_name=str(tmp_path))(image)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_one_that_is_saved_does_the_same_when_loaded(tmp_path: Path) -> None:
    image = Image.effect_noise((40, 30), 90)
    for processor in (
        ImageProcessor(size=16, mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 3.0], resample="bilinear"),
        ImageProcessor(size={"shortest_edge": 20}, crop_size=18),
    ):
        processor.save(tmp_path)
        again = ImageProcessor(model_name=str(tmp_path))
        assert again.shape == processor.shape
        torch.testing.assert_close(again(image), processor(image))


def test_pixels_are_scaled_and_normalized() -> None:
    pixels = ImageProcessor(size=2)(Image.new("RGB", (5, 3), (255, 0, 51)))
    torch.testing.assert_close(pixels, torch.tensor([1.0, -1.0, -0.6]).reshape(3, 1, 1).expand(3, 2, 2))


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"size": {"width": 3}}, "image_processor.size: found"),
        ({"size": 0}, "image_processor.size: found"),
        ({"size": {"shortest_edge": 9}}, "crop_size: not given"),
        ({"resample": "cubic"}, "allowed: bicubic"),
        ({"mean": [0.5]}, "image_processor.mean"),
        ({"std": [0.5, 0.0, 1.0]}, "numbers above 0"),
        ({"model_name": "x", "size": 3}, "one or the other"),
        ({"model_name": "./nowhere"}, "no folder"),
    ],
)
def test_a_wrong_block_is_refused_by_name(block: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ImageProcessor.from_params(Params(block))


def test_a_folder_without_a_processor_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="preprocessor_config.json.*size, mean, std"):
        ImageProcessor(model_name=str(tmp_path))
