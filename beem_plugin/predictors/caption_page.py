"""Images beside their captions, each word in the colour of its depth: one HTML page without external files."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from beem_plugin.rendering.pages import render_page

LARGEST_SIDE = 480
SMALL_SIDE = 128
"""Up to this size images are stored without loss and enlarged pixel by pixel."""


@dataclass
class PageImage:
    """An image with its prediction as `caption_record` makes it, and the other fields of the input."""

    image: Image.Image
    prediction: dict[str, Any]

    @property
    def is_small(self) -> bool:
        return max(self.image.size) <= SMALL_SIDE


def caption_page(images: Sequence[PageImage], exit_layers: Sequence[int]) -> str:
    """The page as HTML with style and images inside; `exit_layers` are the decoder layers that the exits read."""
    layers = [word["layer"] for image in images for word in image.prediction["words"]]
    return render_page(
        "captions.html",
        images=[(image, _data(image)) for image in images],
        exit_layers=exit_layers,
        mean_layer=sum(layers) / len(layers) if layers else None,
        style=lambda layer: _style(layer, exit_layers[-1]),
        exp=math.exp,
    )


def _style(layer: int, depth: int) -> str:
    """From pale to dark blue: lightness alone tells depths apart, also in print and for colour-blind readers."""
    share = 0.0 if depth <= 1 else (layer - 1) / (depth - 1)
    lightness = 92 - share * 64
    colour = "#fff" if lightness < 60 else "#22303c"
    return f"background:hsl({195 + share * 30:.0f} 62% {lightness:.0f}%);color:{colour}"


def _data(page_image: PageImage) -> str:
    image = page_image.image.convert("RGB")
    kind = "PNG" if page_image.is_small else "JPEG"
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=85)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
