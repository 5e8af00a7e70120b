"""The blocks of an image encoder, with a function to call in place of each, and errors for its size of images."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError


class RunBlock(Protocol):
    """Called in place of a block."""

    def __call__(self, stage: int, block: int, hidden: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        """
        The output of a block, `(images, patches, size)` as its input `hidden`. `run` is the block itself, for all or
        some of the images; stages, and blocks within their stage, are numbered from 0.
        """
        ...


def image_stages(encoder: torch.nn.Module) -> list[list[torch.nn.Module]]:
    """
    The blocks of a transformers image encoder, by stages of equal state shape. ViT, DeiT, BEiT and DINOv2 have one
    stage; Swin merges patches between stages. Found by the names of their classes, because their attribute paths change
    from release to release.
    """
    return [
        list(module)
        for module in encoder.modules()
        if isinstance(module, torch.nn.ModuleList)
        and len(module)
        and all(type(child).__name__.endswith("Layer") for child in module)
    ]


@contextmanager
def intercepted_blocks(encoder: torch.nn.Module, run_block: RunBlock) -> Iterator[None]:
    """In it, `encoder` calls `run_block` in place of its blocks; attention weights are not returned."""
    # How many values a block returns beside the state; None if it returns the state itself. A block that is skipped
    # returns as many as the last one that ran, and the first block is never skipped.
    others: int | None = None

    def replaced(
        original: Callable[..., Any], stage: int, block: int, hidden_states: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        def run(hidden: Tensor) -> Tensor:
            nonlocal others
            output = original(hidden, *args, **kwargs)
            if not isinstance(output, tuple):
                return output
            others = len(output) - 1
            return output[0]

        result = run_block(stage, block, hidden_states, run)
        return result if others is None else (result, *[None] * others)

    changed: list[Any] = []
    try:
        for stage, members in enumerate(image_stages(encoder)):
            for number, module in enumerate(members):
                module.forward = partial(replaced, module.forward, stage, number)
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward  # back to the method of the class


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
