"""Records of delimiter-separated text. No row is lost, joined or added, and a cell may have any size."""

import itertools
import logging
import re
from collections.abc import Iterator, Sequence

from beem_plugin.common.errors import DataError

logger = logging.getLogger(__name__)

SAY_QUOTING = (
    "dataset_reader.quoting must say whether quotation marks enclose cells (true) or belong to the text (false)"
)

_UP_TO_CLOSING_QUOTE = re.compile(r'[^"]*(?:""[^"]*)*"(?!")')
_QUOTED = re.compile(r'"([^"]|"")*"')
_MUST_BE_QUOTED = re.compile(r'""|"[^"\r]*((""|\r)[^"\r]*)+"')
"""A cell that a writer had to quote: empty, or with doubled quotation marks or a carriage return inside."""

_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")

_LINES_AHEAD = 1000  # how many lines are looked at for the kind of line end


def whole_lines(lines: Iterator[str]) -> Iterator[str]:
    """
    Lines with their ends, of a file opened with `newline=""`. A carriage return alone ends a line only in a file
    without line feeds: Python and pandas write it in cells without quotes.
    """
    head: list[str] = []
    for line in lines:
        head.append(line)
        if not line.endswith("\r") or len(head) == _LINES_AHEAD:
            break
    if not head or not head[-1].endswith("\n"):
        yield from itertools.chain(head, lines)
        return
    pending = ""
    for line in itertools.chain(head, lines):
        pending += line
        if not line.endswith("\r"):
            yield pending
            pending = ""
    if pending:
        yield pending


def csv_records(lines: Iterator[str], delimiter: str, quoting: bool, source: str) -> Iterator[tuple[int, list[str]]]:
    """
    The number of the last line of each record, and its cells; empty lines are skipped. `lines` are those of
    `whole_lines`. With `quoting`, a cell that begins and ends with a quotation mark is quoted as in RFC 4180;
    `"bad" plot` is text as it stands. A mark that is left open is a `DataError`.
    """
    head, line_end = _line_end(lines)
    numbered = enumerate(itertools.chain(head, lines), 1)
    for number, line in numbered:
        text = _without_end(line, line_end)
        if not text:
            continue
        if not quoting or '"' not in text:
            yield number, text.split(delimiter)
            continue
        cells: list[str] = []
        start = 0
        while start >= 0:
            if line.startswith('"', start):
                parts, opened, start_of_part = list[str](), number, start + 1
                while (closing := _UP_TO_CLOSING_QUOTE.match(line, start_of_part)) is None:
                    parts.append(line[start_of_part:])
                    number, line = next(numbered, (number, ""))
                    if not line:
                        raise _left_open(source, opened)
                    start_of_part = 0
                end = closing.end()
                is_last = not line[end:].strip("\r\n")
                if is_last or line.startswith(delimiter, end):
                    cells.append("".join([*parts, line[start_of_part : end - 1]]).replace('""', '"'))
                    start = -1 if is_last else end + len(delimiter)
                    continue
                if parts:
                    raise _left_open(source, opened)
            end = line.find(delimiter, start)
            cells.append(line[start:end] if end >= 0 else _without_end(line[start:], line_end))
            start = end + len(delimiter) if end >= 0 else -1
        yield number, cells


def tsv_records(lines: Iterator[str], delimiter: str, source: str, has_header: bool) -> Iterator[tuple[int, list[str]]]:
    """
    `csv_records` without a setting for quotation marks: they are text, as in GLUE's files, except in cells that
    Python's csv module or pandas must have quoted, and where the header, or all of the first row, is quoted. Where both
    readings are possible it is a `DataError`.
    """
    first = next(lines, "")
    lines = itertools.chain([first], lines)
    if _quotes_all(first, delimiter, has_header, source):
        yield from csv_records(lines, delimiter, True, source)
        return
    is_noted = False
    for number, cells in csv_records(lines, delimiter, False, source):
        if any(cell.startswith('"') for cell in cells):
            place = f"{source}:{number}"
            if len(cells) == 1 and cells[0].count('"') % 2:  # maybe the first line of a quoted text of several lines
                raise DataError(f"{place}: found the cell {_shown(cells[0])}; {SAY_QUOTING}")
            quoted = [cell for cell in cells if _MUST_BE_QUOTED.fullmatch(cell)]
            if quoted and not is_noted:
                is_noted = True
                message = "%s: read %s as a quoted cell; dataset_reader.quoting false keeps its quotation marks"
                logger.warning(message, place, _shown(quoted[0]))
            cells = [cell[1:-1].replace('""', '"') if cell in quoted else cell for cell in cells]
        yield number, cells


def _quotes_all(first: str, delimiter: str, is_header: bool, source: str) -> bool:
    """Whether the writer of a TSV file quoted every text, by its first line."""
    if is_header:
        return first.startswith('"')  # no column is named so
    texts = [cell for cell in first.rstrip("\r\n").split(delimiter) if not _NUMBER.fullmatch(cell)]
    if not texts or not all(map(_QUOTED.fullmatch, texts)):
        return False
    if len(texts) > 1:
        return True
    raise DataError(f"{source}:1: found the cell {_shown(texts[0])}; {SAY_QUOTING}")


def _shown(cell: str) -> str:
    return cell if len(cell) < 40 else f"{cell[:36]} ..."


def _line_end(lines: Iterator[str]) -> tuple[list[str], str]:
    """The first lines, and the line end of the file: the first line's, or of all others behind a foreign header."""
    first = next(lines, "")
    head, line_end = [first], first[len(first.rstrip("\r\n")) :]
    if line_end == "\n":
        for line in itertools.islice(lines, _LINES_AHEAD):
            head.append(line)
            if not line.endswith("\r\n"):
                break
        # The last line may have no end.
        ends = [line for line in head[1:] if line.endswith("\n")]
        if ends and all(line.endswith("\r\n") for line in ends):
            line_end = "\r\n"
    return [line for line in head if line], line_end


def _without_end(text: str, line_end: str) -> str:
    """Without its line end. In a file whose lines end with `\\n` alone, a carriage return belongs to the cell."""
    if text.endswith("\n"):
        text = text[:-1]
        return text[:-1] if line_end != "\n" and text.endswith("\r") else text
    return text[:-1] if line_end == "\r" and text.endswith("\r") else text


def _left_open(source: str, number: int) -> DataError:
    return DataError(
        f"{source}:{number}: a quotation mark left open: it begins a cell that no other one closes; allowed: a closed "
        "cell with inner marks doubled, or dataset_reader.quoting false, where marks are text"
    )


_COLUMN = re.compile(r"[\w#.-]+")


def format_by_header(head: Sequence[str], names: Sequence[str]) -> str:
    """
    `"csv"` or `"tsv"` if the first line is a header with the text columns and others, else `"text"`. A sentence with a
    comma is no header: other columns are single words, without blanks around the delimiter.
    """
    for format, delimiter in (("csv", ","), ("tsv", "\t")):
        columns = [column.strip('"\ufeff') for column in (head[-1] if head else "").strip().split(delimiter)]
        others = set(columns) - set(names)
        is_header = len(columns) == len(names) + len(others) and all(map(_COLUMN.fullmatch, others))
        if names and others and is_header:
            return format
        if names and columns == list(names):
            logger.warning("the first line, %s, is read as a text; --format %s reads it as the header", columns, format)
            break
    return "text"
