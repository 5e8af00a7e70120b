"""Captions without images: a language model of captions, before a decoder sees images."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.text_input import open_text
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.dataset_readers.caption_files import captions_of, json_document
from beem_plugin.dataset_readers.captions import CaptionedImage, CaptionReader, check_caption_form, target_text

logger = logging.getLogger(__name__)


@DatasetReader.register("caption_text")
class CaptionTextReader(CaptionReader):
    """
    Reads captions alone. A source is one file or several, separated by commas, each in one of the forms that
    `caption_files.captions_of` lists.

    Each caption is an instance. `SOURCE[holdout]` and `SOURCE[fit]` are cut by image where the file names images.

    Registered as a `DatasetReader` with name "caption_text".

    # Parameters

    tokenizer : `CaptionTokenizer`
    caption_form : `str`, optional (default = `"tokens"`)
        See `KarpathyCaptionsReader`.
    exclude_images : `list[str]`, optional (default = `None`)
        Files that name images whose captions are left out: those that are tested on later. A name a line, a Karpathy
        split (its `val` and `test` images) or COCO's JSON (all its images). It is an error if they exclude no caption.
    max_instances, holdout_fraction, holdout_seed
        See `CaptionReader`.
    """

    text_fields = ("caption",)

    def __init__(
        self,
        tokenizer: CaptionTokenizer,
        caption_form: str = "tokens",
        exclude_images: list[str] | None = None,
        max_instances: int | None = None,
        holdout_fraction: float = 0.1,
        holdout_seed: int = 0,
    ) -> None:
        super().__init__(
            tokenizer,
            max_instances=max_instances,
            holdout_fraction=holdout_fraction,
            holdout_seed=holdout_seed,
        )
        self.caption_form = check_caption_form(caption_form)
        self.exclude_images = exclude_images or []

    def is_training_source(self, source: str) -> bool:
        return True

    def _read_images(self, source: str) -> Iterable[CaptionedImage]:
        lists = {path: set(map(_plain, _image_names(Path(path).expanduser()))) for path in self.exclude_images}
        paths = [Path(part.strip()).expanduser() for part in source.split(",")]
        # Of a Karpathy split that is a source itself only the training part is read.
        unused = {name for name in lists if Path(name).expanduser() not in paths}
        is_used = len(unused) < len(lists)
        for path in paths:
            for name, caption, tokens in captions_of(path):
                matching = [listed for listed, names in lists.items() if _plain(name) in names]
                unused.difference_update(matching)
                is_used = is_used or bool(matching)
                target = target_text(caption, tokens, self.caption_form)
                if not matching and target:
                    yield CaptionedImage({"image_id": name}, [caption], [target])
        if lists and not is_used:
            raise DataError(
                f"dataset_reader.exclude_images: none of the images in {', '.join(lists)} is in {source}; allowed: "
                "names as in the captions' file"
            )
        for name in sorted(unused):
            logger.warning("dataset_reader.exclude_images: no image in %s is in %s", name, source)

    def _training_captions(self, source: str) -> Iterable[str]:
        return (target for image in self._read_images(source) for target in image.targets)

    def _instance(self, fields: dict[str, Any]) -> Instance:
        if not isinstance(fields.get("caption"), str):
            raise DataError(f"the input lacks 'caption', a text; found {sorted(fields)}")
        return Instance({**fields, "caption": target_text(fields["caption"], None, self.caption_form)})


def _plain(name: str) -> str:
    """COCO's releases of 2014 and 2017 name the same image with and without `COCO_val2014_`."""
    return re.sub(r"^COCO_\w+2014_|#\d+$", "", name.replace("\\", "/").rsplit("/", 1)[-1])


def _image_names(path: Path) -> list[str]:
    if not path.is_file():
        raise ConfigurationError(f"dataset_reader.exclude_images: {path}: no such file")
    content: Any = json_document(path)
    if content is None:
        with open_text(path) as file:
            return [line.strip() for line in file if line.strip()]
    entries: Any = content.get("images") if isinstance(content, dict) else content
    if isinstance(entries, list) and all(isinstance(entry, str) for entry in entries):
        return entries
    try:
        return [
            entry["file_name"] if "file_name" in entry else entry["filename"]
            for entry in entries
            if entry.get("split", "test") in ("val", "test")
        ]
    except (KeyError, TypeError, AttributeError):
        raise ConfigurationError(
            f"dataset_reader.exclude_images: {path}: allowed: a name a line, a JSON list of names, or a Karpathy split "
            "or COCO's JSON with 'images'"
        ) from None
