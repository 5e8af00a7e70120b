"""Captions without images: a language model of captions, before a decoder sees images."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.files import open_text
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.dataset_readers.captions import CaptionedImage, CaptionReader, check_caption_form, target_text

Caption = tuple[str, str, list[str] | None]
"""The image's name, the caption, and its tokens where the file has them."""

_NAMED_CAPTION = re.compile(r"(?P<name>\S+?\.\w+)(#\d+)?\t(?P<caption>.*)")


@DatasetReader.register("caption_text")
class CaptionTextReader(CaptionReader):
    """
    Reads captions alone. A source is one file or several, separated by commas, each in one of these forms, told apart
    by what is in it:

    - `name.jpg#0<TAB>caption` a line, as `Flickr8k.token.txt`;
    - COCO's annotations, `{"annotations": [{"image_id", "caption"}], "images": [{"id", "file_name"}]}`;
    - a Karpathy split, `{"images": [...]}`, of which the training part is read;
    - any other text: a caption a line.

    Each caption is an instance. `SOURCE[holdout]` and `SOURCE[fit]` are cut by image where the file names images.

    Registered as a `DatasetReader` with name "caption_text".

    # Parameters

    tokenizer : `CaptionTokenizer`
    caption_form : `str`, optional (default = `"tokens"`)
        See `KarpathyCaptionsReader`.
    exclude_images : `list[str]`, optional (default = `None`)
        Files with an image's name a line; their captions are left out. To be given where captions of images that are
        tested on later are among the text. A Karpathy split is taken too: its `val` and `test` images are left out.
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
        excluded = {_plain(name) for path in self.exclude_images for name in _image_names(Path(path).expanduser())}
        for part in source.split(","):
            path = Path(part.strip()).expanduser()
            for name, caption, tokens in captions_of(path):
                if _plain(name) in excluded:
                    continue
                target = target_text(caption, tokens, self.caption_form)
                if target:
                    yield CaptionedImage({"image_id": name}, [caption], [target])

    def _training_captions(self, source: str) -> Iterable[str]:
        return (target for image in self._read_images(source) for target in image.targets)

    def _instance(self, fields: dict[str, Any]) -> Instance:
        if not isinstance(fields.get("caption"), str):
            raise DataError(f"the input lacks 'caption', a text; found {sorted(fields)}")
        return Instance({**fields, "caption": target_text(fields["caption"], None, self.caption_form)})


def captions_of(path: Path) -> Iterator[Caption]:
    """All captions in a file of any of the forms that `CaptionTextReader` names."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    content = _json_object(path)
    if content is not None:
        yield from _json_captions(content, path)
        return
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line:
                continue
            match = _NAMED_CAPTION.fullmatch(line)
            if match is not None:
                yield match["name"], match["caption"].strip(), None
            else:
                yield f"{path.name}:{number}", line, None


def _json_object(path: Path) -> dict[str, Any] | None:
    """The file's JSON object; `None` for plain text."""
    with open_text(path) as file:
        if file.read(1) != "{":
            return None
    with open_text(path) as file:
        try:
            content = json.load(file)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    return content


def _json_captions(content: dict[str, Any], path: Path) -> Iterator[Caption]:
    try:
        if "annotations" in content:
            names = {image["id"]: image["file_name"] for image in content.get("images", [])}
            for annotation in content["annotations"]:
                image = annotation["image_id"]
                yield str(names.get(image, image)), " ".join(annotation["caption"].split()), None
            return
        for entry in content["images"]:
            if entry["split"] in ("train", "restval"):
                for sentence in entry["sentences"]:
                    yield entry["filename"], " ".join(sentence["raw"].split()), sentence.get("tokens")
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: neither COCO's annotations nor a Karpathy split: lacks or garbles {error}") from None


def _plain(name: str) -> str:
    """COCO's releases of 2014 and 2017 name the same image with and without `COCO_val2014_`."""
    return re.sub(r"^COCO_\w+2014_", "", name)


def _image_names(path: Path) -> list[str]:
    if not path.is_file():
        raise ConfigurationError(f"dataset_reader.exclude_images: {path}: no such file")
    content = _json_object(path)
    if content is None:
        with open_text(path) as file:
            return [line.strip() for line in file if line.strip()]
    if not isinstance(content.get("images"), list):
        raise ConfigurationError(
            f"dataset_reader.exclude_images: {path}: allowed: a name a line, or a Karpathy split with 'images'"
        )
    return [entry["filename"] for entry in content["images"] if entry.get("split") in ("val", "test")]
