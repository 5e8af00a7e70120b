"""The input of `predict`: the rows of a file or of standard input, as the archive's reader reads them."""

from __future__ import annotations

from collections.abc import Iterator

from beem_plugin.common.errors import BeemError, ConfigurationError, DataError, nearest_first
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.table_file import TableRow


def input_rows(
    reader: DatasetReader, source: str, format: str | None = None, input_field: str | None = None
) -> Iterator[TableRow]:
    """
    # Parameters

    reader : `DatasetReader`
    source : `str`
        A file, or `-` for standard input. It is read as a stream.
    format : `str`, optional (default: the reader's, or by the file's name, or by its first line)
    input_field : `str`, optional (default = `None`)
        The column that is the reader's one text column.
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


def count_inputs(reader: DatasetReader, source: str, format: str | None = None) -> int | None:
    """The number of rows, up to the first that cannot be read; `None` for standard input, which is read once."""
    if source == "-":
        return None
    count = 0
    try:
        for _ in reader.rows(source, format):
            count += 1
    except BeemError:
        pass  # raised again when the row is to be predicted
    return count
