"""Files that are whole or not there, and text read from wherever it lies."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from beem_plugin.common.errors import ConfigurationError, DataError


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """
    A file object for `path`. What is written goes to a temporary file in the same directory, which takes the name of
    `path` when the block ends and is removed when it raises: nobody ever sees half a file. What is no file of its own,
    a device such as /dev/null or a pipe, is written to as it is; a link keeps pointing where it did.

    # Parameters

    path : `str` or `Path`
        Its directory is made if need be.
    mode : `str`, optional (default = `"w"`)
        `"w"` (UTF-8 text) or `"wb"`.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"mode is {mode!r}, not 'w' or 'wb'")
    path = Path(path)
    if path.is_dir():
        raise ConfigurationError(f"{path}: is a directory, a file is to be written")
    text = {"encoding": "utf-8", "newline": "\n"} if mode == "w" else {}
    if path.exists() and not path.is_file():
        with open(path, mode, **text) as file:  # type: ignore[call-overload]
            yield file
        return
    if path.is_symlink():
        path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        in_the_way = next((parent for parent in path.parents if parent.exists()), path.parent)
        raise ConfigurationError(f"{path}: {in_the_way} is a file, a directory is needed there") from None
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with open(descriptor, mode, **text) as file:  # type: ignore[call-overload]
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _permissions(path))
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_json(path: str | Path, obj: Any) -> None:
    """`obj` as indented JSON. Numbers that JSON does not know (NaN) are a `ValueError`, not an unreadable file."""
    text = json.dumps(obj, indent=2, allow_nan=False)
    with atomic_write(path) as file:
        file.write(text + "\n")


@contextmanager
def open_text(path: str | Path) -> Iterator[IO[str]]:
    """Text to read, as UTF-8 (a byte order mark is dropped): a file, gzipped or not, or standard input (`-`)."""
    if str(path) == "-":
        yield _standard_input()
        return
    try:
        binary = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    with binary:
        is_gzip = binary.peek(2)[:2] == b"\x1f\x8b"
        raw: Any = gzip.GzipFile(fileobj=binary) if is_gzip else binary
        with io.TextIOWrapper(raw, encoding="utf-8-sig", newline=None) as text:
            try:
                yield text
            except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
                raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def _standard_input() -> IO[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8")
    return sys.stdin


def _permissions(path: Path) -> int:
    """Those of the file that is replaced, or what a new file would get; a temporary file alone is private."""
    with suppress(FileNotFoundError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
