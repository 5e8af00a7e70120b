"""What all readers of captions share."""

import logging
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

from beem_plugin.common.errors import DataError, check_choice
from beem_plugin.data.caption_collate import CaptionCollator
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.collate import Collator
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.image_processor import ImageProcessor
from beem_plugin.data.images import image_problem, open_image
from beem_plugin.data.instance import Instance
from beem_plugin.data.slices import PARTS, split_source
from beem_plugin.data.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

ON_BAD_IMAGE = ("error", "skip")
CAPTION_FORMS = ("tokens", "raw")
NAMED = 5  # so many bad images are named in one message


@dataclass
class CaptionedImage:
    fields: dict[str, Any]  # `image_id` and what the image is made from (`image`, its path, or `scene`)
    references: list[str]  # the captions as published, for scoring
    targets: list[str]  # the same captions as the decoder learns them


class CaptionReader(DatasetReader):
    """
    Training data are one instance a caption, other data one an image, with all its captions in the field
    `references`; `SOURCE[captions]` and `SOURCE[images]` ask for one or the other. `SOURCE[holdout]` is a share of the
    images with their captions, `SOURCE[fit]` the others. There are no labels.

    Images are opened when a batch is made, in the data loader's workers.

    # Parameters

    tokenizer : `CaptionTokenizer`
    image_processor : `ImageProcessor`, optional (default = `None`)
        `None`: captions only.
    on_bad_image : `str`, optional (default = `"error"`)
        What happens with images that are missing or cannot be decoded: `"error"`, or `"skip"`, which leaves them out
        with a warning that names them. A damaged training image is found only when it is decoded, and its caption then
        left out of the loss.
    keep_images : `bool`, optional (default = `False`)
        Images stay in memory once they have been decoded, 600 kB each at 224 pixels: for a small data set read many
        times, with no workers in the data loader, as these start anew with each epoch.
    max_instances, slicing, holdout_fraction, holdout_max_size, holdout_seed
        See `DatasetReader`.
    """

    text_fields: tuple[str, ...] = ("image",)
    label_names: list[str] | None = []
    parts = ("fit", "holdout", "captions", "images")

    def __init__(
        self,
        tokenizer: CaptionTokenizer,
        image_processor: ImageProcessor | None = None,
        on_bad_image: str = "error",
        keep_images: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        check_choice("dataset_reader.on_bad_image", on_bad_image, ON_BAD_IMAGE)
        self.caption_tokenizer = tokenizer
        self.image_processor = image_processor
        self.on_bad_image = on_bad_image
        self.keep_images = keep_images

    def read(self, source: str) -> list[Instance]:
        """All instances of `source` or a part of it, tokenized; a tokenizer without words is trained first."""
        base, part = split_source(str(source), self.parts)
        images: Iterable[CaptionedImage] = self._read_images(base)
        if part in PARTS:  # by image, so that no image is on both sides
            images = list(images)
            assigned = self.slicing.assign([(str(image.fields["image_id"]),) for image in images], [""] * len(images))
            images = [image for image, name in zip(images, assigned) if name in PARTS[part]]
        by_caption = part == "captions" or (part != "images" and self.is_training_source(base))
        images = self._usable(list(images), str(source), decode=not by_caption)
        made = (instance for image in images for instance in _instances(image, by_caption))
        instances = list(islice(made, self.max_instances))
        if not instances:
            raise DataError(f"{source}: no captions")
        if not self.caption_tokenizer.is_trained:
            self.caption_tokenizer.train(self._training_captions(base))
        self._encode(instances)
        logger.info("read %d instances from %s", len(instances), source)
        return instances

    def collator(self, vocab: Vocabulary, pad_token_id: int) -> Collator:
        skips = self.on_bad_image == "skip"
        return CaptionCollator(pad_token_id, self.image_processor, self.open_image, skips, self.keep_images)

    def open_image(self, fields: Mapping[str, Any]) -> Image.Image:
        """The image of an instance's fields."""
        return open_image(fields["image"])

    def is_training_source(self, source: str) -> bool:
        """Whether a source is read by captions unless it says otherwise."""
        return source == "train"

    def _read_images(self, source: str) -> Iterable[CaptionedImage]:
        raise NotImplementedError(f"{type(self).__name__} does not define _read_images")

    def _training_captions(self, source: str) -> Iterable[str]:
        """What a tokenizer is trained on: the same captions, whichever source is read first."""
        return (target for image in self._read_images("train") for target in image.targets)

    def _instance(self, fields: dict[str, Any]) -> Instance:
        if not isinstance(fields.get("image"), str) or not fields["image"]:
            raise DataError(f"the input lacks 'image', a path; found {sorted(fields)}")
        return Instance(fields=fields, id=fields.get("image_id", fields.get("id")))

    def _texts(self, instance: Instance) -> tuple[str, ...]:
        return (instance.fields.get("caption", ""),)

    def _usable(self, images: list[CaptionedImage], source: str, decode: bool) -> list[CaptionedImage]:
        """Without the images that cannot be used, or an error that names them."""
        if self.image_processor is None:
            return images
        found = [(image, self._problem(image.fields, decode)) for image in images]
        problems = [problem for _, problem in found if problem is not None]
        if problems:
            more = f" and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
            message = f"{source}: {len(problems)} of {len(images)} images cannot be used: "
            message += "; ".join(problems[:NAMED]) + more
            if self.on_bad_image == "error":
                raise DataError(f'{message}; on_bad_image "skip" leaves them out')
            logger.warning("%s: left out", message)
        return [image for image, problem in found if problem is None]

    def _problem(self, fields: Mapping[str, Any], decode: bool) -> str | None:
        if self.on_bad_image == "error":
            # Damage is reported when a batch is made: here it costs too much to look into every file.
            return None if Path(fields["image"]).is_file() else f"{fields['image']}: no such image"
        return image_problem(fields["image"], decode)


def _instances(image: CaptionedImage, by_caption: bool) -> list[Instance]:
    identity = image.fields.get("image_id")
    if by_caption:
        return [Instance({**image.fields, "caption": target}, id=identity) for target in image.targets]
    fields = {**image.fields, "references": image.references}
    if image.targets:
        fields["caption"] = image.targets[0]
    return [Instance(fields, id=identity)]


def plain_tokens(caption: str) -> str:
    """Lower case without ASCII punctuation, as the Karpathy splits' `tokens`."""
    return " ".join(caption.lower().translate(str.maketrans("", "", string.punctuation)).split())


def target_text(raw: str, tokens: Sequence[str] | None, caption_form: str) -> str:
    """A caption as the decoder learns it: `"tokens"` or `"raw"`."""
    if caption_form == "raw":
        return " ".join(raw.split())
    return " ".join(tokens) if tokens is not None else plain_tokens(raw)
