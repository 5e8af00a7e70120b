"""Checks of what a command reads and writes. Imports nothing heavy."""

import os
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from beem_plugin.common.errors import ConfigurationError, DataError

ARCHIVE_FILES = ("config.json", "meta.json", "weights.safetensors", "best.th", "model.tar.gz")
ARCHIVE_FOLDERS = ("vocabulary", "tokenizer", "image_processor", "backbone", "calibration")
"""The inputs in a serialization directory."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
"""The inputs in any other folder."""

SLICE = re.compile(r"\[[^\[\]]*\]$")


def listed(text: str) -> list[str]:
    """Sources separated by commas. A comma in the name of an existing file, with a slice or without, separates none."""
    parts, found = text.split(","), []
    while parts:
        sizes = range(len(parts), 1, -1)
        size = next((size for size in sizes if _is_file(",".join(parts[:size]))), 1)
        found.append(",".join(parts[:size]).strip())
        del parts[:size]
    return [source for source in found if source]


def _is_file(source: str) -> bool:
    path = os.path.expanduser(source.strip())
    return os.path.exists(path) or os.path.exists(SLICE.sub("", path))


def check_outputs(outputs: Mapping[str, str | None], inputs: Sequence[str | None]) -> None:
    """
    Raises a `ConfigurationError` if two outputs, by option, are one file, or one of them is an input, through any link:
    a file, a part of an archive, an image in a folder, a source of a dataset reader with or without a slice.
    """
    taken = {path: "read as well" for source in inputs for path in _files(source)}
    folders = [os.path.realpath(source) for source in inputs if source is not None and os.path.isdir(source)]
    folders = [folder for folder in folders if not os.path.isfile(os.path.join(folder, ARCHIVE_FILES[0]))]
    for option, path in outputs.items():
        # A device or a pipe, such as /dev/null, may take any number of them.
        if path is None or (os.path.exists(path) and not os.path.isfile(path)):
            continue
        real = os.path.realpath(path)
        is_image = os.path.exists(real) and real.lower().endswith(IMAGE_SUFFIXES)
        if is_image and any(real.startswith(folder + os.sep) for folder in folders):
            taken.setdefault(real, "read as well")
        if real in taken:
            raise ConfigurationError(f"{option}: found {path}, which is {taken[real]}, allowed: another file")
        taken[real] = f"what {option} writes"


def check_writable(outputs: Mapping[str, str | None]) -> None:
    """Raises a `ConfigurationError` if an output file, by option, is not writable. Creates nothing."""
    for option, path in outputs.items():
        if path is None:
            continue
        folder = check_place(path, f"{option}: {path}")
        if not (os.access(path, os.W_OK) if folder is None else os.access(folder, os.W_OK | os.X_OK)):
            raise ConfigurationError(f"{option}: {path}: may not be written")


def check_place(path: str | Path, name: str) -> Path | None:
    """
    The folder where a file that is made or replaced goes, or the first of its parents that exists; `None` for a device
    or a pipe. Raises a `ConfigurationError` if a directory is in the place of the file, or a file in that of a folder.
    """
    if os.path.isdir(path):
        raise ConfigurationError(f"{name}: is a directory, a file is to be written")
    if os.path.exists(path) and not os.path.isfile(path):
        return None
    folder = next(parent for parent in Path(os.path.realpath(path)).parents if parent.exists())
    if not folder.is_dir():
        raise ConfigurationError(f"{name}: {folder} is a file, a directory is needed there")
    return folder


def check_replaced(folder: Path, force: bool, name: str, advice: str, kind: str, marks: Sequence[str]) -> None:
    """Raises a `ConfigurationError` unless a folder is empty, or has one of the `marks` of its kind with `force`."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not force:
        raise ConfigurationError(f"{name} {folder} {advice}")
    if not any((folder / mark).exists() for mark in marks):
        missing = f"(no {', '.join(marks)} is in it)"
        raise ConfigurationError(f"--force: {folder} does not look like {kind} {missing}, so it will not be deleted")


def _files(source: str | None) -> Iterator[str]:
    """The real paths of the files in `source` that count as inputs."""
    if source is None or source == "-":
        return
    if not os.path.isdir(source):
        yield os.path.realpath(source)
        yield os.path.realpath(SLICE.sub("", source))
        return
    for name in ARCHIVE_FILES:
        if os.path.isfile(path := os.path.join(source, name)):
            yield os.path.realpath(path)
    for name in ARCHIVE_FOLDERS:
        yield from (os.path.realpath(path) for path in Path(source, name).rglob("*") if path.is_file())


HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.tar\.gz)")
"""`owner/name` in the model hub."""

_ARCHIVE, _CONFIG = "{}: no such archive", "config {}: no such file"
_TRACE = "{}: no such trace file; write one with `allennlp trace`"
_MISSING = {
    **dict.fromkeys(("archive_file", "archives", "archive_path", "serialization_dir"), _ARCHIVE),
    **dict.fromkeys(("param_path", "base", "config", "variants"), _CONFIG),
    **dict.fromkeys(("trace", "calibrate_on"), _TRACE),
    "weights_file": "{}: no such weights file",
    "ax": "{}: no such file",
}
_TABLE = re.compile(r".*/[^/]*\.(csv|tsv|jsonl|txt)(\.gz)?", re.IGNORECASE)
"""A source that is a file. A name without a folder may be found by the reader, as in GLUE's `data_dir`."""


def check_inputs(args: Namespace, names: tuple[str, ...]) -> None:
    """Raises a `DataError` for a missing file; others than those of `_MISSING` are sources of a dataset reader."""
    for name in names:
        given = getattr(args, name)
        for path in [given] if isinstance(given, str) else given or ():
            if name in _MISSING:
                found = os.path.expanduser(path), path
                if not any(map(os.path.exists, found)) and not (_MISSING[name] is _ARCHIVE and HUB_ID.fullmatch(path)):
                    raise DataError(_MISSING[name].format(path))
                continue
            for source in listed(path):
                file = SLICE.sub("", source)
                if _TABLE.fullmatch(file) and not _is_file(source):
                    raise DataError(f"{file}: no such file")
