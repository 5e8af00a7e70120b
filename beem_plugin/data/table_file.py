"""Rows of a CSV, TSV or JSON lines file, each with its line number, so that errors can name the line."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError, DataError, not_allowed
from beem_plugin.common.files import open_text

logger = logging.getLogger(__name__)

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl"}


@dataclass(frozen=True)
class TableRow:
    """A row by column name, and where it stands."""

    place: str
    values: dict[str, Any]


def table_format(path: str | Path) -> str | None:
    """`"csv"`, `"tsv"` or `"jsonl"` by the file's name, `.gz` aside; `None` for any other name."""
    name = str(path).lower().removesuffix(".gz")
    return FORMATS.get(Path(name).suffix)


def read_table(
    path: str | Path,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    quoting: bool | None = None,
    skip_ragged: bool = False,
) -> Iterator[TableRow]:
    """
    # Parameters

    path : `str | Path`
        `.gz` is read transparently; UTF-8, with or without a byte order mark.
    format : `str`, optional (default: by the file's name)
        `"csv"`, `"tsv"` or `"jsonl"`.
    columns : `Sequence[str]`, optional (default: the first line names them)
        The names of the columns of a CSV or TSV file without a header.
    quoting : `bool`, optional (default: `True` for CSV, `False` for TSV)
        Whether `"` encloses fields. GLUE's TSV files contain single quotes that enclose nothing.
    skip_ragged : `bool`, optional (default = `False`)
        Leave out rows with the wrong number of columns, and log how many, instead of raising.

    # Raises

    `DataError` for a missing, empty or undecodable file, bad JSON, and rows with the wrong number of columns.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    format = format or table_format(path)
    if format is None or format not in FORMATS.values():
        allowed = sorted(set(FORMATS.values()))
        raise ConfigurationError(not_allowed(f"{path}: format", format or path.suffix, allowed))
    if format == "jsonl":
        rows = _json_rows(path)
    else:
        rows = _delimited_rows(path, format, columns, format == "csv" if quoting is None else quoting, skip_ragged)
    found = False
    for row in rows:
        found = True
        yield row
    if not found:
        raise DataError(f"{path}: the file has no rows")


def first_row(path: str | Path) -> list[str]:
    """The cells of the first line of a TSV file without quotes; empty for an empty file."""
    for line in _lines(Path(path)):
        return line.rstrip("\r\n").split("\t")
    return []


def _lines(path: Path) -> Iterator[str]:
    with open_text(path) as file:
        yield from file


def _json_rows(path: Path) -> Iterator[TableRow]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{place}: not valid JSON: {error.msg} at column {error.colno}") from error
        if not isinstance(values, dict):
            raise DataError(f"{place}: one JSON object a line is expected, found {type(values).__name__}")
        yield TableRow(place, values)


def _delimited_rows(
    path: Path, format: str, columns: Sequence[str] | None, quoting: bool, skip_ragged: bool
) -> Iterator[TableRow]:
    reader = csv.reader(
        _lines(path),
        delimiter="," if format == "csv" else "\t",
        quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE,
        strict=True,
    )
    names = list(columns) if columns is not None else None
    skipped = 0
    try:
        for cells in reader:
            if not cells:
                continue
            place = f"{path}:{reader.line_num}"
            if names is None:
                names = [cell.strip() for cell in cells]
                if len(set(names)) < len(names):
                    raise DataError(f"{place}: a column name stands twice in the header: {', '.join(names)}")
            elif len(cells) == len(names):
                yield TableRow(place, dict(zip(names, cells, strict=True)))
            elif skip_ragged:
                skipped += 1
            else:
                raise DataError(f"{place}: found {len(cells)} columns, expected {len(names)}: {', '.join(names)}")
    except csv.Error as error:
        hint = "; is a quotation mark left open?" if quoting else ""
        raise DataError(f"{path}:{reader.line_num}: {error}{hint}") from error
    if skipped:
        logger.warning("%s: left out %d rows with the wrong number of columns", path, skipped)
