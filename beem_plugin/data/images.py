"""Image files: found, opened, and named when they cannot be."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from beem_plugin.common.errors import DataError
from beem_plugin.common.outputs import IMAGE_SUFFIXES

# What Pillow raises for files that are cut off, of another kind, absurdly large, or damaged inside.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)

# Formats whose grey levels of 16 bits older releases of Pillow read as integers of 32.
_WIDENED = ("PNG", "PPM")


class BadImageError(DataError):
    """A missing or damaged image, named by the message; torch puts a worker's traceback before it, which is dropped."""

    def __init__(self, message: str) -> None:
        super().__init__(message.strip().rsplit("BadImageError: ", 1)[-1])


def open_image(path: str | Path) -> Image.Image:
    """The image in RGB, decoded, the right way up where its EXIF data say that it was not."""
    try:
        with Image.open(path) as image:
            image.load()
            _check_range(image)
            return to_rgb(ImageOps.exif_transpose(image))
    except _DAMAGE as error:
        raise BadImageError(f"{path}: {_reason(error)}") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """In RGB, 8 bits a channel. Pillow's own conversion clips grey levels of 16 bits: all but black would be white."""
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.float64) / 257  # 65535 is 255
        image = Image.fromarray(levels.round().clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def _check_range(image: Image.Image) -> None:
    """Refuses pixels of which nobody can say how bright they are: integers of 32 bits, and floating-point numbers."""
    if image.mode == "F" or (image.mode == "I" and image.format not in _WIDENED):
        raise ValueError(f"found pixels of 32 bits, mode {image.mode}, allowed: 8 or 16 bits a channel")


def image_problem(path: str | Path, decode: bool = False) -> str | None:
    """Why an image cannot be used, or `None`; without `decode` its header alone is read, a hundred times faster."""
    try:
        with Image.open(path) as image:
            _check_range(image)
            if decode:
                image.load()
    except _DAMAGE as error:
        return f"{path}: {_reason(error)}"
    return None


def image_files(folder: str | Path) -> list[Path]:
    """The image files in a folder, by name."""
    return sorted(
        path for path in Path(folder).iterdir() if path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir()
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such image"
    if isinstance(error, IsADirectoryError):
        return "is a folder, an image is expected"
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    return f"the image cannot be decoded: {' '.join(str(error).split()) or type(error).__name__}"
