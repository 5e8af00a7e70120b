"""The input of `predict`: the rows of a file or of standard input, as the archive's reader reads them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError, DataError, nearest_first
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.table_file import TableRow

_BLOCK = 1 << 20


def input_rows(
    reader: DatasetReader, source: str, format: str | None = None, input_field: str | None = None
) -> Iterator[TableRow]:
    """
    The rows of a file, or of standard input (`-`), as a stream. `format` is by default the reader's, or by the file's
    name or first line; `input_field` is a column that is the reader's one text column.
    """
    if input_field is None:
        yield from reader.rows(source, format)
        return
    if len(reader.text_fields) != 1:
        raise ConfigurationError(
            f"--input-field: found the reader's text columns {', '.join(reader.text_fields)}, allowed: with one"
        )
    (name,) = reader.text_fields
    for row in reader.rows(source, format):
        # A line of plain text is the reader's column already.
        if input_field not in row.values and list(row.values) != [name]:
            found = ", ".join(nearest_first(input_field, row.values))
            raise DataError(f"{row.place}: no column {input_field!r} (--input-field); found: {found}")
        values = {name if key == input_field else key: value for key, value in row.values.items()}
        yield TableRow(row.place, values)


def count_lines(reader: DatasetReader, source: str, format: str | None = None) -> int | None:
    """
    The number of lines of a file without its header, for a progress bar; `None` for standard input, which is read once.
    """
    if not Path(source).is_file():
        return None
    table = reader.table.given(format)
    has_header = table.of(source) in ("csv", "tsv") and table.columns is None
    with open(source, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    opener: Any = gzip.open if is_gzip else open
    try:
        with opener(source, "rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b"")) - has_header
    except (OSError, EOFError, zlib.error):  # reported when it is read
        return None
