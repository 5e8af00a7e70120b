"""An ablation as a table: on the terminal, as Markdown, as CSV."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from beem_plugin.common.files import atomic_write
from beem_plugin.comparison.ablation.difference import in_one_line
from beem_plugin.comparison.ablation.rows import Row, Spread

SPREADS = ("layer_speedup", "average_exit", "average_layer", "training_seconds", "validation_score")


def columns(rows: Sequence[Row]) -> list[str]:
    """The table's head; the first two are text."""
    return [
        "variant", "differs from base in", *(f"{name} {kind}" for name in metric_names(rows) for kind in
        ("early exit", "last exit")), "layer speed-up", "average exit", "calibrated on", "judged on",
        "training s", "parameters",
    ]  # fmt: skip


def metric_names(rows: Sequence[Row]) -> list[str]:
    """Accuracy, and the task's own metric if that is another."""
    judged = [row for row in rows if row.results]
    return list(dict.fromkeys(["accuracy", *(row.main_metric for row in judged)])) if judged else []


def cells(row: Row, metrics: Sequence[str]) -> list[str]:
    """One line of the table, as long as `columns`; of a variant without results an error after its name and diff."""
    head = [row.name, in_one_line(row.differences)]
    if not row.results:
        return [*head, "failed", *[""] * (2 * len(metrics) + 5)]
    first = row.results[0]
    values = [shown(row.spread(name, block), 100, 2) for name in metrics for block in ("metrics", "final_metrics")]
    values += [shown(row.spread("layer_speedup"), 1, 2, "x"), shown(row.spread("average_exit"), 1, 2)]
    values += [str(first["calibrated_on"] or "(given)"), str(first["judged_on"])]
    seconds = row.spread("training_seconds")
    values.append("" if seconds is None else shown(seconds, 1, 0))
    return [*head, *values, f"{first['parameters'] / 1e6:.2f}M (exits {first['exit_parameters'] / 1e6:.2f}M)"]


def shown(spread: Spread | None, factor: float, digits: int, unit: str = "") -> str:
    """`71.25 [70.10, 72.00]`, or the number alone where all seeds agree or there is one."""
    if spread is None:
        return ""
    median, low, high = (f"{factor * value:.{digits}f}" for value in (spread.median, spread.min, spread.max))
    return f"{median}{unit}" if spread.min == spread.max else f"{median}{unit} [{low}, {high}]"


def notes(rows: Sequence[Row]) -> list[str]:
    """Chosen settings, errors, and warnings, each with the variants that it is about."""
    lines = []
    for row in rows:
        if row.settings:
            tried = [entry["validation_score"] for entry in row.settings]
            scores = [score for score in tried if score is not None]
            said = f"; validation scores {min(scores):.4f} to {max(scores):.4f}" if scores else ""
            lines.append(f"{row.name}: the best of {len(row.settings)} settings on validation data{said}")
        lines += [f"{row.name}: error: {error}" for error in row.errors]
    about: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        for result in row.results:
            for warning in result["warnings"]:
                about.setdefault((warning, result["seed"]), []).append(row)
    everyone = sum(bool(row.results) for row in rows)
    for (warning, seed), members in about.items():
        who = "all variants" if len(members) == everyone > 1 else named(members)
        lines.append(f"warning: {who}, seed {seed}: {warning}")
    return lines


def named(rows: Sequence[Row]) -> str:
    """The rows' names; several of one grid as their number."""
    count = Counter(row.variant.family for row in rows)
    names = [
        row.name if count[row.variant.family] == 1 else f"{row.variant.family} ({count[row.variant.family]} settings)"
        for row in rows
    ]
    return ", ".join(dict.fromkeys(names))


def explanation(rows: Sequence[Row]) -> str:
    seeds = max((len(row.results) for row in rows), default=0)
    spread = f"Median over {seeds} seeds [smallest, largest]. " if seeds > 1 else "One seed. "
    return (
        f"{spread}Metrics in percent. Layer speed-up counts layers, not seconds; last exit is the whole network. "
        "Variants with the same training seconds share one training."
    )


def print_table(rows: Sequence[Row], title: str) -> None:
    """The table on the terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=220)
    metrics = metric_names(rows)
    table = Table(title=escape(title))
    for index, name in enumerate(columns(rows)):
        is_text = index < 2 or name in ("calibrated on", "judged on")
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, cells(row, metrics)), style="red" if row.errors else None)
    console.print(table)
    console.print(explanation(rows), highlight=False, markup=False)
    for line in notes(rows):
        console.print(line, style="red" if ": error: " in line else "yellow", highlight=False, markup=False)


def write_markdown(rows: Sequence[Row], path: Path, title: str, plots: Sequence[str] = ()) -> None:
    """The table, what it means, notes, and links to the plots."""
    metrics = metric_names(rows)
    names = columns(rows)
    lines = [f"# {title}", "", explanation(rows), "", markdown_line(names)]
    lines.append("|" + "|".join("---" if index < 2 else "---:" for index in range(len(names))) + "|")
    lines += [markdown_line(cells(row, metrics)) for row in rows]
    said = notes(rows)
    lines += ["", *(f"- {line}" for line in said)] if said else []
    lines += ["", *(f"![{name}]({name})" for name in plots if name.endswith(".svg"))] if plots else []
    with atomic_write(path) as file:
        file.write("\n".join(lines) + "\n")


def markdown_line(values: Sequence[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|").replace("\n", " ") for value in values) + " |"


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """A line a variant, every number in a column of its own: `accuracy`, `accuracy_min`, `accuracy_max`, ..."""
    lines = [csv_line(row) for row in rows]
    names = list(dict.fromkeys(name for line in lines for name in line))
    with atomic_write(path) as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(lines)


def csv_line(row: Row) -> dict[str, Any]:
    line: dict[str, Any] = {"name": row.name, "diff": in_one_line(row.differences, whole_keys=True)}
    line.update(training=row.training, seeds=len(row.results), error="; ".join(row.errors))
    if not row.results:
        return line
    first = row.results[0]
    line.update({key: first[key] for key in ("calibrated_on", "judged_on", "samples", "parameters", "exit_parameters")})
    named = [(name, row.spread(name, "metrics")) for name in first["metrics"]]
    named += [(f"last_exit_{name}", row.spread(name, "final_metrics")) for name in first["final_metrics"]]
    named += [(name, row.spread(name)) for name in SPREADS]
    for name, spread in named:
        if spread is not None:
            line.update({name: spread.median, f"{name}_min": spread.min, f"{name}_max": spread.max})
    return line
