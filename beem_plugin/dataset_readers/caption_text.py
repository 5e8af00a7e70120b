"""Captions without images: a language model of captions, before a decoder sees images."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError, DataError, check_choice, nearest_first
from beem_plugin.common.outputs import listed
from beem_plugin.common.strict_json import parse_json
from beem_plugin.common.text_input import open_text
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.data.table_file import TableFormat, read_table
from beem_plugin.dataset_readers.captions import CAPTION_FORMS, CaptionedImage, CaptionReader, target_text

logger = logging.getLogger(__name__)


@DatasetReader.register("caption_text")
class CaptionTextReader(CaptionReader):
    """
    Reads captions alone. A source is one file or several, separated by commas, each in one of the forms that
    `captions_of` lists.

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
        options: dict[str, Any] = {"holdout_fraction": holdout_fraction, "holdout_seed": holdout_seed}
        super().__init__(tokenizer, max_instances=max_instances, **options)
        check_choice("dataset_reader.caption_form", caption_form, CAPTION_FORMS)
        self.caption_form = caption_form
        self.exclude_images = exclude_images or []

    def is_training_source(self, source: str) -> bool:
        return True

    def _read_images(self, source: str) -> Iterable[CaptionedImage]:
        lists = {path: set(map(_plain, _image_names(Path(path).expanduser()))) for path in self.exclude_images}
        paths = [Path(part).expanduser() for part in listed(source)]
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


Caption = tuple[str, str, list[str] | None]  # the image's name, the caption, and its tokens where the file has them

FORMS = "name.jpg#0<TAB>caption, a table with columns image and caption, COCO or Karpathy JSON, a caption a line"

_IMAGE_KEYS = ("image", "image_name", "file_name", "filename", "image_id")
_CAPTION_KEYS = ("caption", "comment")
_NAMED_CAPTION = re.compile(r"(?P<name>[^\t]+?\.\w+)(#\d+)?\t(?P<caption>.*)")
_NAMED_IMAGE = re.compile(r".*\.(jpe?g|png|gif|bmp|webp|tiff?)(#\d+)?\s*([,;|\t]|$)", re.IGNORECASE)


def captions_of(path: Path) -> Iterator[Caption]:
    """
    All captions in a file: Flickr8k's `name.jpg#0<TAB>caption`; a table with a header, as Kaggle's `image,caption` and
    Flickr30k's `image_name| comment_number| comment`; COCO's annotations; the training part of a Karpathy split; JSON
    lines or a list of objects with an image and a caption; otherwise a caption a line. Another form is a `DataError`.
    """
    first = _first_line(path)
    delimiter = next((mark for mark in "|,;\t" if _is_header(first.split(mark))), None)
    if delimiter is not None:
        table = TableFormat("csv", delimiter, quoting=delimiter in ",;")
        for row in read_table(path, table):
            yield _object_caption(row.values, row.place)
    elif first[:1] in ("{", "["):
        yield from _json_captions(path, first)
    else:
        yield from _line_captions(path)


def json_document(path: Path) -> Any:
    """The file's JSON; `None` for plain text."""
    if _first_line(path)[:1] not in ("{", "["):
        return None
    with open_text(path) as file:
        return parse_json(file.read(), str(path))


def _first_line(path: Path) -> str:
    """The first line that is not blank."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with open_text(path) as file:
        return next((line.strip() for line in file if line.strip()), "")


def _is_header(cells: list[str]) -> bool:
    names = [cell.strip().strip('"').lower() for cell in cells]
    return any(name in _IMAGE_KEYS for name in names) and any(name in _CAPTION_KEYS for name in names)


def _line_captions(path: Path) -> Iterator[Caption]:
    is_named: bool | None = None
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line:
                continue
            match = _NAMED_CAPTION.fullmatch(line)
            is_named = match is not None if is_named is None else is_named
            if is_named != (match is not None) or (match is None and _NAMED_IMAGE.match(line)):
                raise DataError(f"{path}:{number}: found {line[:60]!r}, allowed in the whole file: {FORMS}")
            if match is not None:
                yield match["name"].strip(), match["caption"].strip(), None
            else:
                yield f"{path.name}:{number}", line, None


def _json_captions(path: Path, first: str) -> Iterator[Caption]:
    if first.startswith("[") or _is_object_with_caption(first):
        for row in read_table(path, TableFormat("jsonl")):
            yield _object_caption(row.values, row.place)
        return
    content = json_document(path)
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


def _is_object_with_caption(line: str) -> bool:
    try:
        content = parse_json(line, "")
    except DataError:
        return False  # an object of several lines
    return any(key in content for key in _CAPTION_KEYS)


def _object_caption(values: Mapping[str, Any], place: str) -> Caption:
    image = next((values[key] for key in values if key.lower() in _IMAGE_KEYS), None)
    caption = next((values[key] for key in values if key.lower() in _CAPTION_KEYS), None)
    if image is None or isinstance(image, (dict, list)) or not isinstance(caption, str):
        found = ", ".join(nearest_first("caption", values)) or "none"
        raise DataError(f"{place}: an image and a caption are expected; found the columns: {found}")
    return str(image), " ".join(caption.split()), None
