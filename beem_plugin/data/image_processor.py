"""Images to the pixel values that an encoder was trained on."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.common.files import write_json
from beem_plugin.common.registry import FromParams
from beem_plugin.data.hub import hub_error, hub_options, resolve_model_name
from beem_plugin.data.images import to_rgb

KEY = "image_processor.model_name"
CONFIG_NAME = "preprocessor_config.json"
RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
HALF = (0.5, 0.5, 0.5)


class ImageProcessor(FromParams):
    """
    The `image_processor` block of a captions reader: resize, cut, scale to 0..1, normalize. It does what the image
    processors of transformers do for Swin, ViT, DeiT, BEiT and DINOv2, by Pillow alone, whatever else is installed.

    Either `model_name`, or the other keys.

    # Parameters

    model_name : `str`, optional (default = `None`)
        A name in the hub or a folder: the encoder's `preprocessor_config.json` says the rest.
    size : `int | dict`, optional (default = `224`)
        The sides of the square that an image is squeezed to; or `{"height": h, "width": w}`; or
        `{"shortest_edge": s}`, which keeps its shape.
    crop_size : `int | dict`, optional (default = `None`)
        The middle of the resized image that is kept.
    mean, std : `list[float]`, optional (default = `[0.5, 0.5, 0.5]`)
        One number a channel; pixels are in 0..1.
    resample : `str | int`, optional (default = `"bicubic"`)
        `nearest`, `bilinear`, `bicubic`, `lanczos`, `box`, `hamming`, or Pillow's number for it.
    """

    def __init__(
        self,
        model_name: str | None = None,
        size: int | dict[str, int] | None = None,
        crop_size: int | dict[str, int] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        resample: str | int | None = None,
    ) -> None:
        given: dict[str, Any] = {"size": size, "crop_size": crop_size, "mean": mean, "std": std, "resample": resample}
        if model_name is not None:
            extra = [name for name, value in given.items() if value is not None]
            if extra:
                raise ConfigurationError(f"image_processor: found model_name and {extra[0]}, allowed: one or the other")
            given = _published(model_name)
        self.size = _dimensions("size", given["size"] if given["size"] is not None else 224)
        crop = given["crop_size"]
        self.crop_size = None if crop is None else _dimensions("crop_size", crop)
        self.mean = _channels("mean", given["mean"])
        self.std = _channels("std", given["std"])
        resample = "bicubic" if given["resample"] is None else given["resample"]
        if resample not in RESAMPLING.values():
            check_choice("image_processor.resample", resample, RESAMPLING)
        self.resample = RESAMPLING[resample] if isinstance(resample, str) else int(resample)
        if "shortest_edge" in self.size and self.crop_size is None:
            raise ConfigurationError(
                "image_processor.crop_size: not given, but size.shortest_edge keeps an image's shape; allowed: the "
                "part that is kept, as the images of a batch must be of one size"
            )
        if 0 in self.std:
            raise ConfigurationError(f"image_processor.std: found {list(self.std)}, allowed: numbers above 0")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of what comes out."""
        kept = self.crop_size or self.size
        return kept["height"], kept["width"]

    def __call__(self, image: Image.Image) -> Tensor:
        """`(3, height, width)` float32."""
        image = to_rgb(image).resize(self._resized(image.size), Image.Resampling(self.resample))
        if self.crop_size is not None:
            height, width = self.crop_size["height"], self.crop_size["width"]
            top, left = (image.height - height) // 2, (image.width - width) // 2
            image = image.crop((left, top, left + width, top + height))
        pixels = np.asarray(image, dtype=np.float32) / np.float32(255)
        normalized = (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(normalized.transpose(2, 0, 1)))

    def save(self, folder: str | Path) -> None:
        """In the form of transformers, for `model_name: folder`."""
        write_json(
            Path(folder) / CONFIG_NAME,
            {
                "image_processor_type": "ViTImageProcessor" if self.crop_size is None else "BitImageProcessor",
                "do_convert_rgb": True,
                "do_resize": True,
                "size": self.size,
                "resample": self.resample,
                "do_center_crop": self.crop_size is not None,
                **({} if self.crop_size is None else {"crop_size": self.crop_size}),
                "do_rescale": True,
                "rescale_factor": 1 / 255,
                "do_normalize": True,
                "image_mean": list(self.mean),
                "image_std": list(self.std),
            },
        )

    def _resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height, in Pillow's order."""
        if "shortest_edge" not in self.size:
            return self.size["width"], self.size["height"]
        width, height = size
        edge = self.size["shortest_edge"]
        if width <= height:
            return edge, int(edge * height / width)
        return int(edge * width / height), edge


def _published(model_name: str) -> dict[str, Any]:
    """The keys of this class from an encoder's `preprocessor_config.json`."""
    from transformers.image_processing_base import ImageProcessingMixin

    folder_or_name = resolve_model_name(model_name, KEY)
    try:
        config, _ = ImageProcessingMixin.get_image_processor_dict(folder_or_name, **hub_options())
    except (OSError, ValueError) as error:
        if not Path(folder_or_name).is_dir():
            raise hub_error(KEY, model_name, error) from error
        raise ConfigurationError(
            f"{KEY}: {folder_or_name} has no readable {CONFIG_NAME}; allowed: a folder with one, or the keys size, "
            "mean, std, resample instead of model_name"
        ) from error
    if not config.get("do_rescale", True) or abs(config.get("rescale_factor", 1 / 255) - 1 / 255) > 1e-6:
        raise ConfigurationError(f"{KEY}: {model_name} scales pixels otherwise than to 0..1, which is not supported")
    if not config.get("do_resize", True):
        raise ConfigurationError(f"{KEY}: {model_name} does not resize, so that its images make no batch")
    normalizes = config.get("do_normalize", True)
    crops = config.get("do_center_crop", False)
    size = config.get("size", 224)
    return {
        # Older files write a size that keeps the shape as a bare number next to a crop.
        "size": {"shortest_edge": size} if isinstance(size, int) and crops else size,
        "crop_size": config.get("crop_size", 224) if crops else None,
        "mean": config.get("image_mean", HALF) if normalizes else (0.0, 0.0, 0.0),
        "std": config.get("image_std", HALF) if normalizes else (1.0, 1.0, 1.0),
        "resample": config.get("resample", 3),
    }


def _dimensions(key: str, value: Any) -> dict[str, int]:
    if isinstance(value, int):
        value = {"height": value, "width": value}
    shapes = [{"height", "width"}] + ([{"shortest_edge"}] if key == "size" else [])
    names = {name for name, side in dict(value).items() if side is not None}
    if names not in shapes or any(not isinstance(value[name], int) or value[name] < 1 for name in names):
        either = ' or {"shortest_edge": s}' if key == "size" else ""
        raise ConfigurationError(
            f'image_processor.{key}: found {value!r}, allowed: a number of pixels, {{"height": h, "width": w}}{either}'
        )
    return {name: value[name] for name in sorted(names)}


def _channels(key: str, value: Any) -> tuple[float, ...]:
    values = tuple(HALF if value is None else value)
    if len(values) != 3:
        raise ConfigurationError(f"image_processor.{key}: found {list(values)}, allowed: three numbers, one a channel")
    return values
