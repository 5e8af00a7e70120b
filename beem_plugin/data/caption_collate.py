"""Captions, with or without images, to one padded batch."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from beem_plugin.data.collate import ragged
from beem_plugin.data.image_processor import ImageProcessor
from beem_plugin.data.images import BadImageError
from beem_plugin.data.instance import Instance

logger = logging.getLogger(__name__)

ImageOpener = Callable[[Mapping[str, Any]], Image.Image]


@dataclass
class CaptionCollator:
    """
    The collator of the captions readers; images are opened here, in the data loader's workers.

    A batch holds

    - `input_ids` `(batch, tokens)` int64: start, words, end, then padding;
    - `attention_mask` `(batch, tokens)` int64: 1 from start to end. A padding token may be the end token as well, as
      GPT-2's is: only the mask tells them apart;
    - `pixel_values` `(images, 3, height, width)` float32, unless the reader is one of captions only;
    - `image_of_row` `(batch,)` int64, if images repeat: a file is opened and encoded once, for all of its captions.
      Without it images are as many as captions, in their order;
    - `index` `(batch,)` int64: positions in the data set.

    # Parameters

    pad_token_id : `int`
    processor : `ImageProcessor`, optional (default = `None`)
        `None`: captions only.
    open_image : `ImageOpener`, optional (default = `None`)
        From the fields of an instance to its image.
    skips_bad_images : `bool`, optional (default = `False`)
        An image that cannot be decoded is named in a warning and replaced by an empty one, its caption masked: batches
        keep their sizes, and nothing is learnt from it. Otherwise it is an error.
    keeps_images : `bool`, optional (default = `False`)
        Images stay in memory once they have been decoded, in the process that makes the batches.
    """

    pad_token_id: int
    processor: ImageProcessor | None = None
    open_image: ImageOpener | None = None
    skips_bad_images: bool = False
    keeps_images: bool = False
    _kept: dict[str, Tensor] = field(default_factory=dict, init=False)

    def __call__(self, instances: Sequence[Instance], indices: Sequence[int] | None = None) -> dict[str, Tensor]:
        batch = ragged(instances, self.pad_token_id).padded(always_mask=True)
        batch["attention_mask"] = attention_mask = batch["attention_mask"].to(torch.int64)
        if self.processor is not None:
            firsts, image_of_row = distinct_images(instances)
            images = [self._pixels(instances[first]) for first in firsts]
            for number, image in enumerate(image_of_row):
                if images[image] is None:
                    attention_mask[number] = 0
            empty = torch.zeros(3, *self.processor.shape)
            batch["pixel_values"] = torch.stack([empty if pixels is None else pixels for pixels in images])
            if len(firsts) < len(instances):
                batch["image_of_row"] = torch.tensor(image_of_row, dtype=torch.int64)
        batch["index"] = torch.tensor(range(len(instances)) if indices is None else indices, dtype=torch.int64)
        return batch

    def _pixels(self, instance: Instance) -> Tensor | None:
        path = instance.fields.get("image") if self.keeps_images else None
        if path in self._kept:
            return self._kept[path]
        assert self.processor is not None and self.open_image is not None
        try:
            pixels = self.processor(self.open_image(instance.fields))
        except BadImageError as error:
            if not self.skips_bad_images:
                raise
            logger.warning("left out: %s", error)
            return None
        if path is not None:
            self._kept[path] = pixels
        return pixels


def distinct_images(instances: Sequence[Instance]) -> tuple[list[int], list[int]]:
    """The first row of every image file, and the number of each row's image among them."""
    numbers: dict[Any, int] = {}
    firsts: list[int] = []
    image_of_row: list[int] = []
    for row, instance in enumerate(instances):
        # What is not a file, such as a generated scene, is an image of its own.
        number = numbers.setdefault(instance.fields.get("image", row), len(firsts))
        if number == len(firsts):
            firsts.append(row)
        image_of_row.append(number)
    return firsts, image_of_row
