"""The one reading of CSV, TSV, JSON lines and text files: rows by column name, each with its place for errors."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from beem_plugin.common.errors import ConfigurationError, DataError, check_choice, not_allowed
from beem_plugin.common.strict_json import JSON_DECODER, parse_json
from beem_plugin.common.text_input import check_encoding, open_text
from beem_plugin.data.csv_records import SAY_QUOTING, csv_records, format_by_header, tsv_records, whole_lines

logger = logging.getLogger(__name__)

_BETWEEN_ITEMS = re.compile(r"\s*[\[,]?\s*")
_QUOTED = re.compile('"[^"]*"')

SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".text": "text",
}
FORMATS = ("csv", "jsonl", "tsv", "text")
TABLES = FORMATS[:3]  # those that have columns, and so labels


class TableRow(NamedTuple):
    """A row by column name; `place` is its file and line."""

    place: str
    values: dict[str, Any]


@dataclass(frozen=True)
class TableFormat:
    """
    How a reader's files are written. One object is used by training, `evaluate`, `trace` and `predict`.

    # Parameters

    format : `str`, optional (default: by the file's name)
        `"csv"`, `"tsv"`, `"jsonl"` (a JSON object a line, or one JSON array of objects) or `"text"` (a text a line).
    delimiter : `str`, optional (default: a tab for TSV, a comma for CSV)
        One character. A CSV file whose header has more columns by `;` or by tabs than by commas is split there. Given
        without `format`, files with other names than the above are CSV.
    quoting : `bool`, optional (default: `True` for CSV; for TSV see below)
        Whether `"` encloses cells. By default quotation marks in a TSV file are text, as in GLUE's files, except in
        cells that Python's csv module or pandas must have quoted: those with doubled marks inside, such as
        `"a ""good"" film"`, and all cells where a writer quoted the header, too.
    columns : `Sequence[str]`, optional (default: the first line names them)
        The columns of CSV and TSV files without a header.
    encoding : `str`, optional (default = `"utf-8"`)
    """

    format: str | None = None
    delimiter: str | None = None
    quoting: bool | None = None
    columns: Sequence[str] | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if self.format is not None:
            check_choice("format", self.format, FORMATS)
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ConfigurationError(f"delimiter: found {self.delimiter!r}, allowed: one character, such as ';'")
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise ConfigurationError(f"columns: found a name twice: {', '.join(self.columns)}")
        check_encoding(self.encoding)

    def of(self, path: str | Path) -> str | None:
        """The format of the file at `path`; `None` if its name does not tell."""
        found = self.format or table_format(path)
        return "csv" if self.delimiter is not None and found in (None, "text") else found

    def given(self, format: str | None) -> TableFormat:
        """These settings with another format; what belongs to one format alone is not taken over to another."""
        if format is None or format == self.format:
            return self
        return replace(self, format=format, delimiter=None, quoting=None)


def table_format(path: str | Path) -> str | None:
    """The format by the file's name, without `.gz`; `None` for a name that does not tell."""
    return SUFFIXES.get(Path(str(path).lower().removesuffix(".gz")).suffix)


def read_table(
    path: str | Path,
    table: TableFormat | None = None,
    text_fields: Sequence[str] | None = None,
    skip_ragged: bool = False,
    optional: str | None = None,
) -> Iterator[TableRow]:
    """
    The rows of a file, `.gz` or not, or of standard input (`-`). `text_fields` are the columns that a line of plain
    text is, several separated by tabs: without them plain text is refused; with them, a file whose name does not tell
    its format is JSON if it begins with a bracket, otherwise text. `optional` is a column that files without a header
    may lack, such as the labels of a file that is to be predicted.

    A missing, empty or undecodable file, bad JSON, and rows with the wrong number of columns are a `DataError`; with
    `skip_ragged` such rows are left out, and their number is logged.
    """
    table = table or TableFormat()
    format = table.of(path)
    if str(path) != "-" and not Path(path).exists():
        raise DataError(f"{path}: no such file")
    if Path(path).is_dir():
        raise DataError(f"{path}: is a directory, allowed: a file")
    if text_fields is None and format not in TABLES:
        raise ConfigurationError(not_allowed(f"{path}: format", format or Path(path).suffix, TABLES))
    found = False
    with open_text(path, table.encoding, newline="") as file:
        lines = whole_lines(iter(file))
        first = next(lines, "")
        if first.count("\0") * 3 > len(first):
            raise DataError(f"{path}:1: found NUL characters, allowed: text; dataset_reader.encoding can be utf-16-le")
        lines = itertools.chain([first] if first else [], lines)
        if format in (None, "jsonl"):
            head = list(_up_to_text(lines))
            begin = head[-1].lstrip()[:1] if head else ""
            lines = itertools.chain(head, lines)
            format = "jsonl" if begin in ("{", "[") else format or format_by_header(head, text_fields or ())
        if format == "jsonl":
            rows = _array_rows("".join(lines), str(path)) if begin == "[" else _json_rows(lines, str(path))
        elif format == "text":
            rows = _text_rows(lines, str(path), text_fields or ())
        else:
            header = first if format == "csv" and table.columns is None else ""
            between = table.delimiter or ("\t" if format == "tsv" else _delimiter_of(header))
            rows = _delimited_rows(lines, str(path), format, replace(table, delimiter=between), skip_ragged, optional)
        for row in rows:
            found = True
            yield row
    if not found and str(path) != "-":
        raise DataError(f"{path}: the file has no rows")


def _delimiter_of(header: str) -> str:
    """Of a CSV file: a comma, or what spreadsheets write in its place in much of Europe if that gives more columns."""
    return max(",;\t", key=_QUOTED.sub("", header).count)


def first_cells(path: str | Path) -> list[str]:
    """The cells of the first line of a TSV file without quotes; empty for an empty file."""
    with open_text(path) as file:
        first = next(iter(file), "")
    return first.rstrip("\n").split("\t") if first else []


def _up_to_text(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if not line.isspace():
            return


def _json_rows(lines: Iterable[str], source: str) -> Iterator[TableRow]:
    for number, line in enumerate(lines, start=1):
        if not line.isspace():
            place = f"{source}:{number}"
            try:
                values = parse_json(line, place)
            except DataError as error:
                raise DataError(f"{error}; a JSON object a line, or one array of objects, is expected") from None
            yield _object_row(values, place)


def _array_rows(text: str, source: str) -> Iterator[TableRow]:
    """The objects of one JSON array, each with the line on which it begins."""
    parse_json(text, source)  # of valid JSON the items are found by skipping blanks and commas
    line, at = 1, 0
    while True:
        begin = _BETWEEN_ITEMS.match(text, at).end()  # type: ignore[union-attr]  # matches the empty string
        line += text.count("\n", at, begin)
        if text.startswith("]", begin):
            return
        place = f"{source}:{line}"
        values, at = JSON_DECODER.raw_decode(text, begin)
        yield _object_row(values, place)
        line += text.count("\n", begin, at)


def _object_row(values: Any, place: str) -> TableRow:
    if not isinstance(values, dict):
        raise DataError(f"{place}: one JSON object a line is expected, found {type(values).__name__}")
    return TableRow(place, values)


def _text_rows(lines: Iterable[str], source: str, names: Sequence[str]) -> Iterator[TableRow]:
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r\n")
        if not text or text.isspace():
            continue
        if len(names) == 1:
            yield TableRow(f"{source}:{number}", {names[0]: text})
            continue
        texts = text.split("\t")
        if len(texts) != len(names):
            raise DataError(
                f"{source}:{number}: found {len(texts)} text(s) separated by tabs, allowed: {len(names)} "
                f"({', '.join(names)})"
            )
        yield TableRow(f"{source}:{number}", dict(zip(names, texts, strict=True)))


def _delimited_rows(
    lines: Iterator[str], source: str, format: str, table: TableFormat, skip_ragged: bool, optional: str | None
) -> Iterator[TableRow]:
    delimiter = table.delimiter or ","
    names = list(table.columns) if table.columns is not None else None
    if table.quoting is None and format == "tsv":
        records = tsv_records(lines, delimiter, source, has_header=names is None)
    else:
        records = csv_records(lines, delimiter, table.quoting is not False, source)
    skipped = rows = 0
    for number, cells in records:
        place = f"{source}:{number}"
        if names is None:
            names = [cell.strip() for cell in cells]
            if len(set(names)) < len(names):
                raise DataError(f"{place}: a column name stands twice in the header: {', '.join(names)}")
            continue
        if not rows and table.columns is not None and optional in names and len(cells) == len(names) - 1:
            names.remove(optional)
        rows += 1
        if len(cells) == len(names):
            yield TableRow(place, dict(zip(names, cells, strict=True)))
        elif skip_ragged:
            skipped += 1
        else:
            is_quoted = table.quoting is None and any(cell.startswith('"') for cell in cells)
            hint = f"; {SAY_QUOTING}" if is_quoted else ""
            raise DataError(f"{place}: found {len(cells)} columns, expected {len(names)}: {', '.join(names)}{hint}")
    if skipped:
        logger.warning("%s: left out %d rows with the wrong number of columns", source, skipped)
