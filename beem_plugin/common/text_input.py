"""Text input with its encoding, gzipped or not."""

import codecs
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from beem_plugin.common.errors import ConfigurationError, DataError


@contextmanager
def open_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """The bytes of a file or standard input (`-`), gzipped or not, which can be peeked at."""
    is_file = str(path) != "-"
    try:
        binary: Any = open(path, "rb") if is_file else sys.stdin.buffer  # noqa: SIM115
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    if not hasattr(binary, "peek"):
        binary = io.BufferedReader(binary)
    try:
        yield gzip.GzipFile(fileobj=binary) if binary.peek(2)[:2] == b"\x1f\x8b" else binary  # type: ignore[misc]
    finally:
        if is_file:
            binary.close()


@contextmanager
def open_text(path: str | Path, encoding: str = "utf-8", newline: str | None = None) -> Iterator[IO[str]]:
    """
    Text from a file or standard input (`-`), gzipped or not, without a byte order mark; `newline` is `open`'s. UTF-16
    with a mark is read where UTF-8 is expected.
    """
    if str(path) == "-" and not hasattr(sys.stdin, "buffer"):  # replaced by a program
        yield sys.stdin
        return
    with open_bytes(path) as raw:
        is_utf8 = codecs.lookup(encoding).name == "utf-8"
        text = io.TextIOWrapper(raw, encoding=encoding, newline=newline)
        try:
            if is_utf8:
                is_utf16 = raw.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # type: ignore[attr-defined]
                encoding = "utf-16" if is_utf16 else "utf-8-sig"
                text.reconfigure(encoding=encoding)
            yield text
        except UnicodeError as error:
            line = _undecodable_line(path) if encoding == "utf-8-sig" and str(path) != "-" else ""
            raise DataError(f"{path}{line}: not {encoding.removesuffix('-sig').upper()} text: {error}") from error
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}: a damaged gzip file: {error}") from error
        finally:
            with suppress(ValueError):
                text.detach()


def check_encoding(encoding: str, key: str = "encoding") -> None:
    """Raises a `ConfigurationError` unless Python has a text encoding of that name."""
    try:
        "".encode(encoding)
    except (LookupError, ValueError):
        raise ConfigurationError(f"{key}: found {encoding!r}, allowed: utf-8, latin-1, cp1252, utf-16, ...") from None


def _undecodable_line(path: str | Path) -> str:
    """`:N` for the number of the first line that is not UTF-8."""
    with open_bytes(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return f":{number}"
    return ""
