"""Images beside their captions, every word in the colour of its depth: one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from PIL import Image

LARGEST_SIDE = 480
CSS = """
:root { color-scheme: light; --ink: #22303c; --soft: #66717e; --line: #e3e7ec; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f7f9; color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 24px; margin: 0 0 4px; }
.soft { color: var(--soft); font-size: 14px; }
.legend { display: flex; flex-wrap: wrap; gap: 6px; margin: 16px 0 24px; font-size: 13px; }
.legend span, .word { border-radius: 6px; padding: 2px 8px; }
figure { display: flex; gap: 24px; align-items: center; margin: 0 0 16px; padding: 16px; background: #fff;
  border: 1px solid var(--line); border-radius: 10px; break-inside: avoid; }
figure img { width: 260px; max-height: 260px; object-fit: contain; border-radius: 6px; flex: none; }
figure img.small { image-rendering: pixelated; }
figcaption { min-width: 0; }
.caption { font-size: 20px; line-height: 2.1; margin: 0; }
.word sub { font-size: 11px; opacity: .75; margin-left: 3px; }
@media (max-width: 640px) { figure { flex-direction: column; align-items: flex-start; } }
"""


@dataclass
class PageImage:
    """
    # Parameters

    image : `PIL.Image.Image`
    prediction : `dict[str, Any]`
        As `caption_record` makes it, with whatever else the input said.
    """

    image: Image.Image
    prediction: dict[str, Any]


def caption_page(images: Sequence[PageImage], exit_layers: Sequence[int]) -> str:
    """
    # Parameters

    images : `Sequence[PageImage]`
    exit_layers : `Sequence[int]`
        The decoder's layer that each exit reads.

    # Returns

    `str`
        HTML with style and images inside.
    """
    layers = [word["layer"] for image in images for word in image.prediction["words"]]
    depth = exit_layers[-1]
    mean = f"; words left at layer {sum(layers) / len(layers):.1f} of {depth} on average" if layers else ""
    legend = "".join(
        f'<span style="{_style(layer, depth)}">exit {number} &middot; layer {layer}</span>'
        for number, layer in enumerate(exit_layers, 1)
    )
    figures = "".join(_figure(image, depth) for image in images)
    counted = f"{len(images)} image{'' if len(images) == 1 else 's'}{mean}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Captions by depth</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{CSS}</style></head><body><main>'
        f'<h1>Captions by depth</h1><p class="soft">{counted}. The darker a word, the deeper the decoder went for it; '
        f'the small number is the layer.</p><div class="legend">{legend}</div>{figures}</main></body></html>\n'
    )


def _figure(image: PageImage, depth: int) -> str:
    said = image.prediction
    words = " ".join(
        f'<span class="word" style="{_style(word["layer"], depth)}" title="exit {word["exit"]}, layer {word["layer"]}, '
        f'probability {math.exp(word["log_probability"]):.2f}">{escape(word["word"])}<sub>{word["layer"]}</sub></span>'
        for word in said["words"]
    )
    name = escape(str(said.get("image") or said.get("image_id") or ""))
    references = "".join(f'<div class="soft">{escape(text)}</div>' for text in said.get("references", [])[:3])
    small = ' class="small"' if max(image.image.size) <= 128 else ""
    return (
        f'<figure><img{small} src="{_data(image.image)}" alt="{escape(said["caption"])}"><figcaption>'
        f'<p class="caption">{words}</p><div class="soft">{name}</div>{references}</figcaption></figure>'
    )


def _style(layer: int, depth: int) -> str:
    """From pale to dark blue: lightness alone tells depths apart, on paper and to eyes that see fewer colours."""
    share = 0.0 if depth <= 1 else (layer - 1) / (depth - 1)
    lightness = 92 - share * 64
    colour = "#fff" if lightness < 60 else "#22303c"
    return f"background:hsl({195 + share * 30:.0f} 62% {lightness:.0f}%);color:{colour}"


def _data(image: Image.Image) -> str:
    image = image.convert("RGB")
    kind = "PNG" if max(image.size) <= 128 else "JPEG"
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=85)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
