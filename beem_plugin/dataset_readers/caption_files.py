"""Files of captions in the forms in which they are published."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import DataError, nearest_first
from beem_plugin.common.strict_json import parse_json
from beem_plugin.common.text_input import open_text
from beem_plugin.data.table_file import TableFormat, read_table

Caption = tuple[str, str, list[str] | None]
"""The image's name, the caption, and its tokens where the file has them."""

FORMS = "name.jpg#0<TAB>caption, a table with columns image and caption, COCO or Karpathy JSON, a caption a line"

_IMAGE_KEYS = ("image", "image_name", "file_name", "filename", "image_id")
_CAPTION_KEYS = ("caption", "comment")
_NAMED_CAPTION = re.compile(r"(?P<name>[^\t]+?\.\w+)(#\d+)?\t(?P<caption>.*)")
_NAMED_IMAGE = re.compile(r".*\.(jpe?g|png|gif|bmp|webp|tiff?)(#\d+)?\s*([,;|\t]|$)", re.IGNORECASE)


def captions_of(path: Path) -> Iterator[Caption]:
    """
    All captions in a file: Flickr8k's `name.jpg#0<TAB>caption`; a table with a header, as Kaggle's `image,caption` and
    Flickr30k's `image_name| comment_number| comment`; COCO's annotations; the training part of a Karpathy split; JSON
    lines or a list of objects with an image and a caption; otherwise a caption a line.

    # Raises

    `DataError`, with file and line, for a file of another form.
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
