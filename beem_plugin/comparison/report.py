"""What a comparison leaves: a table as data, as text and as plots, and on the terminal."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from beem_plugin.comparison.trainings.trainings import say
from beem_plugin.rendering.plots import save_figure
from beem_plugin.rendering.tables import Table, write_all


def write_report(
    path: Path,
    table: Table,
    content: Any,
    lines: Sequence[Mapping[str, Any]],
    figures: Mapping[str, Any] = MappingProxyType({}),
    more: str = "",
) -> None:
    """
    Prints the table, and writes it to `PATH.md`, with `more` below, and `.tex`; `content` to `.json`, `lines` to
    `.csv`, and each of `figures`, by file name, to `.svg` and `.png` beside them.
    """
    text = {".md": markdown(table, list(figures), more), ".tex": table.to_latex()}
    written = write_all(path, {".json": content, ".csv": lines, **text})
    for name, figure in figures.items():
        written += save_figure(figure, *(path.with_name(f"{name}{ending}") for ending in (".png", ".svg")))
    table.print(220)
    say("wrote " + ", ".join(map(str, written)))


def calibrate_command(archive: Path, trace: Path | str, policy: Path | str) -> str:
    """The command, for a shell, that puts a fitted policy into the archive of its training."""
    paths = ("allennlp", "calibrate", archive, "--trace", trace, "--policy", policy, "--output-archive", "NEW.tar.gz")
    return shlex.join(map(str, paths))


def markdown(table: Table, figures: Sequence[str] = (), more: str = "") -> str:
    """The table with its notes, and links to the figures."""
    lines = [f"# {table.title}", "", table.to_markdown(), *(f"- {note}" for note in table.notes)]
    lines += ["", *(f"![{name}]({name}.svg)" for name in figures)] if figures else []
    return "\n".join([*lines, "", more] if more else lines).rstrip() + "\n"
