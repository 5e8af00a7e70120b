"""One table object for the terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import math
import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.common.files import atomic_write, write_json

MISSING = "-"
LATEX = {char: f"\\{char}" for char in "&%$#_{}"} | {"±": "$\\pm$", "→": "$\\to$", "~": "\\textasciitilde{}"}


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error (`79.41 ± 3.79`), or with its smallest and largest (`71.25 [70.10, 72.00]`)."""

    value: float
    error: float | None = None
    bounds: tuple[float, float] | None = None

    @property
    def ends(self) -> tuple[float, float]:
        return self.bounds or (self.value, self.value)

    @classmethod
    def spread(cls, values: Iterable[float | None]) -> Estimate | None:
        """The median with the smallest and the largest; `None` of no value."""
        found = [float(value) for value in values if value is not None]
        return cls(statistics.median(found), bounds=(min(found), max(found))) if found else None


@dataclass(frozen=True)
class Column:
    """How the cells under a head are shown."""

    name: str
    kind: Literal["text", "number"] = "number"  # text is aligned left and shown as it is
    digits: int = 2
    unit: str = ""  # after each number, such as `"x"` or `" %"`
    factor: float = 1.0  # numbers are shown times this; CSV and JSON keep them as they are
    better: Literal["up", "down"] | None = None  # the best number of the column is bold in Markdown and LaTeX
    sign: bool = False  # whether positive numbers have a plus
    spare: bool = False  # whether a narrow terminal goes without it

    def show(self, cell: Any) -> str:
        """The cell as text."""
        if cell is None or isinstance(cell, float) and math.isnan(cell):
            return MISSING
        if isinstance(cell, str):
            return cell
        if isinstance(cell, Estimate):
            number, (low, high) = f"{self._number(cell.value)}{self.unit}", cell.ends
            if cell.error is not None:
                return f"{number} ± {self.factor * cell.error:.{self.digits}f}"
            return number if low == high else f"{number} [{self._number(low)}, {self._number(high)}]"
        return f"{self._number(cell)}{self.unit}"

    def _number(self, value: float) -> str:
        return f"{self.factor * value:{'+' if self.sign else ''}{'' if self.digits else ','}.{self.digits}f}"


def text(*names: str) -> list[Column]:
    """Columns of text."""
    return [Column(name, "text") for name in names]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """rich's own ends the program with status 1; the command gives the status of a broken pipe."""
        raise BrokenPipeError


@dataclass
class Table:
    """Cells are numbers, `Estimate`s, text, or `None`."""

    columns: list[Column]
    rows: list[Any] = field(default_factory=list)
    title: str = ""
    notes: list[str] = field(default_factory=list)
    """Lines under the table. One with `warning:` is yellow on the terminal, one with `error:` red."""

    @classmethod
    def of_records(cls, records: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], title: str = "") -> Table:
        """The values of `columns`, by their keys, one row a record; a column without any value is left out."""
        keys = [key for key in columns if any(record.get(key) is not None for record in records)]
        return cls([columns[key] for key in keys], [[record.get(key) for key in keys] for record in records], title)

    @property
    def heads(self) -> list[str]:
        return [column.name for column in self.columns]

    def cells(self) -> list[list[str]]:
        """Every row as text."""
        return [[column.show(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]

    def fitted(self, width: int) -> Table:
        """For a line a row: heads are wrapped, then intervals and spare columns left out, which a note names."""
        table, left_out = self._with_wrapped_heads(), []
        plain = [[replace(one, bounds=None) if isinstance(one, Estimate) else one for one in row] for row in self.rows]
        if table._width > width and plain != self.rows:
            left_out = ["intervals"]
            notes = [note for note in self.notes if not note.startswith("[..]")]
            table = replace(self, rows=plain, notes=notes)._with_wrapped_heads()
        for place in reversed(range(len(self.columns))):
            if self.columns[place].spare and table._width > width:
                left_out.append(self.columns[place].name)
                rows = [row[:place] + row[place + 1 :] for row in table.rows]
                table = replace(table, columns=table.columns[:place] + table.columns[place + 1 :], rows=rows)
        note = f"left out for a line a row: {'; '.join(left_out)}"
        return replace(table, notes=[note, *table.notes]) if left_out else table

    def _with_wrapped_heads(self) -> Table:
        columns = []
        for column, *shown in zip(self.columns, *self.cells()):
            width = max(map(cell_len, shown), default=len(column.name))
            head = textwrap.wrap(column.name, max(width, 1), break_long_words=False, break_on_hyphens=False)
            columns.append(replace(column, name="\n".join(head)))
        return replace(self, columns=columns)

    @property
    def _width(self) -> int:
        """The width on the terminal where no cell is folded."""
        heads = [max(head.split("\n"), key=cell_len) for head in self.heads]
        return 1 + sum(3 + max(map(cell_len, cells)) for cells in zip(heads, *self.cells(), strict=True))

    def print(self, width: int = 160, stderr: bool = False, line_a_row: bool = False) -> None:
        """On the terminal, labels folded, never cut; `line_a_row`: `fitted` to it. `width` is for other outputs."""
        console = _Console(stderr=stderr)
        if line_a_row and console.is_terminal:
            self.fitted(console.width).print(stderr=stderr)
            return
        width = max(width, self._width) if line_a_row else width
        console = console if console.is_terminal else _Console(width=width, stderr=stderr)
        table = RichTable(title=escape(self.title) or None)
        for column in self.columns:
            table.add_column(escape(column.name), justify="left" if column.kind == "text" else "right", overflow="fold")
        for row in self.cells():
            table.add_row(*map(escape, row))
        console.print(table)
        for note in self.notes:
            style = "red" if "error:" in note else "yellow" if "warning:" in note else None
            console.print(note, style=style, highlight=False, markup=False, soft_wrap=True)

    def to_markdown(self) -> str:
        rows = self._marked("**", "**", lambda cell: cell.replace("|", "\\|").replace("\n", " "))
        ruler = ["---" if column.kind == "text" else "---:" for column in self.columns]
        lines = [f"| {' | '.join(self.heads)} |", f"|{'|'.join(ruler)}|", *(f"| {' | '.join(row)} |" for row in rows)]
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """A `tabular` for the package `booktabs`."""

        def escaped(cell: str) -> str:
            return "".join(LATEX.get(char, char) for char in cell)

        spec = "".join("l" if column.kind == "text" else "r" for column in self.columns)
        body = [f"  {' & '.join(row)} \\\\" for row in self._marked("\\textbf{", "}", escaped)]
        head = f"  {' & '.join(map(escaped, self.heads))} \\\\"
        lines = [f"\\begin{{tabular}}{{{spec}}}", "  \\toprule", head, "  \\midrule", *body, "  \\bottomrule"]
        return "\n".join([*lines, "\\end{tabular}", ""])

    def to_records(self) -> list[dict[str, Any]]:
        """One dictionary a row, numbers as they are; an `Estimate` gives further entries."""
        records = []
        for row in self.rows:
            record: dict[str, Any] = {}
            for name, cell in zip(self.heads, row, strict=True):
                record[name] = cell.value if isinstance(cell, Estimate) else cell
                if isinstance(cell, Estimate) and cell.error is not None:
                    record[f"{name} error"] = cell.error
                if isinstance(cell, Estimate) and cell.bounds is not None:
                    record |= {f"{name} low": cell.bounds[0], f"{name} high": cell.bounds[1]}
            records.append(record)
        return records

    def write(self, path: str | Path) -> None:
        """Writes the format that the file's name ends in: `.md`, `.tex`, `.csv` or `.json`."""
        makers: dict[str, Callable[[], Any]] = {
            ".md": self.to_markdown,
            ".tex": self.to_latex,
            ".csv": self.to_records,
            ".json": lambda: {"title": self.title, "rows": self.to_records(), "notes": self.notes},
        }
        if (suffix := Path(path).suffix.lower()) not in makers:
            raise ConfigurationError(not_allowed("table", str(path), [f"NAME{end}" for end in makers]))
        write_all(Path(path).with_suffix(""), {Path(path).suffix: makers[suffix]()})

    def _marked(self, before: str, after: str, escape: Any) -> list[list[str]]:
        """The rows as escaped text, the best of each column that has one between `before` and `after`."""
        shown = [[escape(cell) for cell in row] for row in self.cells()]
        for place, column in enumerate(self.columns):
            values = [row[place].value if isinstance(row[place], Estimate) else row[place] for row in self.rows]
            numbers = [value for value in values if isinstance(value, int | float) and not math.isnan(value)]
            if column.better is None or len(numbers) < 2:
                continue
            best = max(numbers) if column.better == "up" else min(numbers)
            for row, value in zip(shown, values, strict=True):
                if value == best:
                    row[place] = f"{before}{row[place]}{after}"
        return shown


def write_csv(path: str | Path, records: Sequence[Mapping[str, Any]]) -> None:
    """One line a record; columns in the order in which they first occur, empty where a record has none."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    with atomic_write(path) as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def write_all(path: Path, contents: Mapping[str, Any]) -> list[Path]:
    """Writes PATH and each ending: records to `.csv`, what JSON holds to `.json`, else text."""
    written = []
    for end, content in contents.items():
        written.append(path.with_name(path.name + end))
        if end.lower() == ".csv":
            write_csv(written[-1], content)
        elif end.lower() == ".json":
            write_json(written[-1], content)
        else:
            with atomic_write(written[-1]) as file:
                file.write(content)
    return written
