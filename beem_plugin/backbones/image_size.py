"""Errors for images of a size that the image encoder does not take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from beem_plugin.common.errors import ConfigurationError

FOUND = "dataset_reader.image_processor (of shapes_captions also dataset_reader.image_size)"
TAKEN = "model.decoder.backbone.encoder.image_size"


@contextmanager
def named_image_size(backbone: Any, pixel_values: Tensor) -> Iterator[None]:
    """
    Converts the error of an image encoder that does not support images of this size into a `ConfigurationError` that
    names the keys. Sizes are not checked beforehand: DINOv2 and Swin support sizes other than the configured one.
    `pixel_values` are `(images, channels, height, width)`.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        expected, found = encoder_image_size(backbone), tuple(pixel_values.shape[-2:])
        # A RuntimeError may be about the sizes of tensors, but also about memory and much else.
        is_of_size = isinstance(error, ValueError) or "size of tensor" in str(error)
        if expected is None or expected == found or not is_of_size:
            raise
        raise ConfigurationError(
            f"{FOUND}: found images of {found[0]} x {found[1]} pixels, allowed: {expected[0]} x {expected[1]}, the "
            f"image encoder's ({TAKEN})"
        ) from error


def encoder_image_size(backbone: Any) -> tuple[int, int] | None:
    """Height and width in the encoder's configuration."""
    size = getattr(getattr(backbone.image_encoder, "config", None), "image_size", None)
    if isinstance(size, int):
        return size, size
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) and len(size) == 2 else None
