"""Records from JSONL, CSV, TSV or plain text, as a stream."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError, DataError, not_allowed

FORMATS = ("jsonl", "csv", "tsv", "text")
SUFFIXES = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv", ".txt": "text", ".text": "text"}


def format_of(path: str, format: str | None) -> str | None:
    """The format given, or the one that the file's name says (`.gz` apart); `None` where the first line must tell."""
    if format is not None:
        if format not in FORMATS:
            raise ConfigurationError(not_allowed("--format", format, FORMATS))
        return format
    suffixes = [suffix for suffix in Path(path).suffixes if suffix not in (".gz", ".bz2", ".xz")]
    return SUFFIXES.get(suffixes[-1].lower()) if suffixes else None


def read_records(
    lines: Iterable[str], source: str, format: str | None, text_fields: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Yields `(line number, record)`; blank lines are skipped.

    # Parameters

    lines : `Iterable[str]`
    source : `str`
        The file's name, for messages.
    format : `str`, optional
        One of `FORMATS`; `None` tells by the first line: JSON if it starts with a brace, else plain text.
    text_fields : `Sequence[str]`
        The reader's input columns. A plain text line is one of them, or several separated by tabs.
    """
    lines = iter(lines)
    if format is None:
        first = next(lines, None)
        if first is None:
            return
        lines = itertools.chain([first], lines)
        format = "jsonl" if first.lstrip("\ufeff \t").startswith("{") else "text"
    if format == "jsonl":
        yield from _json_records(lines, source)
    elif format == "text":
        yield from _text_records(lines, source, text_fields)
    else:
        yield from _table_records(lines, source, "," if format == "csv" else "\t", text_fields)


def _json_records(lines: Iterable[str], source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        line = line.strip().removeprefix("\ufeff")
        if not line:
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{source}:{number}: not JSON: {error.msg} at column {error.colno}") from None
        if not isinstance(record, dict):
            raise DataError(f"{source}:{number}: found a JSON {type(record).__name__}, allowed: an object")
        yield number, record


def _text_records(
    lines: Iterable[str], source: str, text_fields: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n").removeprefix("\ufeff")
        if not line.strip():
            continue
        parts = line.split("\t") if len(text_fields) > 1 else [line]
        if len(parts) != len(text_fields):
            raise DataError(
                f"{source}:{number}: found {len(parts)} text(s) separated by tabs, allowed: {len(text_fields)} "
                f"({', '.join(text_fields)})"
            )
        yield number, dict(zip(text_fields, parts, strict=True))


def _table_records(
    lines: Iterable[str], source: str, delimiter: str, text_fields: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    # GLUE's TSV files hold single, unbalanced quotes, so that only CSV knows quoting.
    quoting = csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE
    rows = csv.reader(lines, delimiter=delimiter, quoting=quoting)  # type: ignore[arg-type]
    header = [name.removeprefix("\ufeff").strip() for name in next(rows, [])]
    if not header:
        return
    missing = [name for name in text_fields if name not in header]
    if missing:
        raise DataError(f"{source}:1: the header lacks {missing}; found the columns {header}")
    for row in rows:
        if not row or not any(row):
            continue
        if len(row) != len(header):
            raise DataError(
                f"{source}:{rows.line_num}: found {len(row)} columns, allowed: {len(header)} as in the header"
            )
        yield rows.line_num, dict(zip(header, row, strict=True))
