"""Decodes the captions of a split's images under a policy."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.progress import progress_bar
from beem_plugin.data.instance import Instance
from beem_plugin.decoding import CaptionDecoding, Decoded, GeneratedCaption, SkippedBlocks
from beem_plugin.decoding.meter import CaptionMacs
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.tasks.task import evaluation_loader

Decode = Callable[[Mapping[str, Tensor]], Decoded]


def captioner_of(model: Any) -> MultiExitCaptioner:
    """The model, if it is a captioner."""
    if not isinstance(model, MultiExitCaptioner):
        raise ConfigurationError(f"found a model {type(model).__name__}, allowed: multi_exit_captioner")
    return model


def decoder_of(model: Any, **options: Any) -> Decode:
    """The model's captions of a batch with the `options` of its `decode`; costs are NaN if it has `generate` alone."""
    if hasattr(model, "decode"):
        return partial(model.decode, **options)

    def generate(batch: Mapping[str, Tensor]) -> Decoded:
        inputs = {name: value.to(next(model.parameters()).device) for name, value in batch.items()}
        return Decoded(model.generate(inputs, **options), CaptionMacs(images=math.nan))

    return generate


def changed(decoding: CaptionDecoding, skipped_blocks: str | None = None, **values: int | None) -> CaptionDecoding:
    """The same decoding with those values that are not `None`."""
    other = copy.copy(decoding)
    vars(other).update({name: value for name, value in values.items() if value is not None})
    if skipped_blocks is not None:
        other.skipped_blocks = SkippedBlocks.from_params({"type": skipped_blocks})
    return other


def image_batches(archive: Archive, instances: Sequence[Instance], size: int) -> list[dict[str, Tensor]]:
    """`index` and `pixel_values` of all images, on the model's device and in its precision."""
    parameter = next(archive.model.parameters())
    batches = []
    for batch in evaluation_loader(archive, instances, size):
        pixels = batch["pixel_values"]
        if "image_of_row" in batch:
            pixels = pixels[batch["image_of_row"]]
        batches.append({"index": batch["index"], "pixel_values": pixels.to(parameter.device, parameter.dtype)})
    return batches


@torch.inference_mode()
def decode_in_order(
    decode: Decode, batches: Iterable[dict[str, Tensor]], count: int, what: str = ""
) -> tuple[list[GeneratedCaption], list[Decoded]]:
    """
    The captions of `count` images in the order of the data, and what `decode` gave for each batch; `index` in a batch
    is each image's position in the data, `what` the name of the progress bar, if there is one.
    """
    rows: list[int] = []
    parts = []
    with progress_bar(count, what, disable=not what, unit=" images") as bar:
        for batch in batches:
            rows += batch["index"].tolist()
            parts.append(decode(batch))
            bar.update(len(batch["index"]))
    captions = [caption for part in parts for caption in part.captions]
    return [caption for _, caption in sorted(zip(rows, captions, strict=True), key=lambda pair: pair[0])], parts
