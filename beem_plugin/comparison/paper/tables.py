"""The paper's tables from judged runs: medians over seeds with their range."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.comparison.paper.layouts import Layout
from beem_plugin.comparison.paper.methods import METHODS, settings_of, shown_encoder
from beem_plugin.comparison.paper.runs import TaskRows, three_quarters
from beem_plugin.rendering.tables import Column, Estimate, Table, text, write_csv

TASK_NAMES = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "qqp": "QQP",
    "stsb": "STS-B",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
}
METRICS = {"cola": "MCC", "stsb": "corr."}


def spread(values: Iterable[float]) -> Estimate | None:
    """The median with the smallest and the largest."""
    found = list(values)
    return Estimate(statistics.median(found), bounds=(min(found), max(found))) if found else None


def paper_table(layout: Layout, found: Sequence[TaskRows], backbones: Sequence[str], methods: Sequence[str]) -> Table:
    """Of each encoder and method two columns a task: the metric in percent, and the layer speed-up."""
    tasks = list(dict.fromkeys(one.task for one in found))
    columns = text("model")
    for task in tasks:
        name = TASK_NAMES.get(task, task)
        columns += [Column(f"{name} {METRICS.get(task, 'Acc')}", digits=1, sign=layout.relative, better="up")]
        columns += [Column(f"{name} Spd", unit="x")]
    plain = Column("", digits=1)
    table = Table(columns, title=layout.title)
    for backbone in backbones:
        by_task = {one.task: one for one in found if one.backbone == backbone}
        for method in methods:
            cells: list[Any] = [row_name(method, backbone)]
            for task in tasks:
                own = by_task[task]
                values = own.values(method)
                if not layout.relative or method == "final":
                    shown: Any = spread(values.values())
                    # Not compared with the differences below it.
                    cells.append(plain.show(shown) if layout.relative else shown)
                else:
                    base = own.values("final")
                    cells.append(spread(value - base[seed] for seed, value in values.items() if seed in base))
                cells.append(spread(own.speeds(method)))
            table.rows.append(cells)
    return table


def row_name(method: str, backbone: str) -> str:
    encoder = shown_encoder(backbone)
    name = METHODS[method].row.format(encoder=encoder, layers=three_quarters(backbone))
    return name if "{encoder}" in METHODS[method].row else f"{encoder} {name}" if "large" in encoder else name


def records(found: Sequence[TaskRows], methods: Sequence[str]) -> list[dict[str, Any]]:
    """One line for each encoder, task, method and seed: what CSV and JSON hold."""
    lines = []
    for one in found:
        base = one.values("final")
        for method in methods:
            row = one.row(method)
            for result, value, speed in zip(
                row.results if row else (), one.values(method).values(), one.speeds(method), strict=True
            ):
                seed = result["seed"]
                line = {"encoder": one.backbone, "task": one.task, "method": method, "seed": seed, "value": value}
                line |= {"difference": value - base[seed]} if seed in base else {}
                line |= {"layer_speedup": speed, **{name: 100 * number for name, number in result["metrics"].items()}}
                for part, judged in (result.get("parts") or {}).items():
                    line |= {f"{part}_{name}": 100 * number for name, number in judged["metrics"].items()}
                line |= {"training_seconds": result["training_seconds"], "calibrated_on": result["calibrated_on"]}
                lines.append(line)
    return lines


def settings_table(found: Sequence[TaskRows], methods: Sequence[str]) -> Table:
    """What was run: of each method and task its rate, optimizer, batch, epochs and rule."""
    columns = ("method", "task", "encoder", "rate", "optimizer", "batch", "epochs", "rule")
    table = Table(text(*columns), title="settings")
    for method in methods:
        for one in found:
            row = one.row(method)
            if row is not None:
                settings = {key: str(value) for key, value in settings_of(row.variant).items()}
                table.rows.append([method, one.task, shown_encoder(one.backbone), *settings.values()])
    return table


def notes(layout: Layout, found: Sequence[TaskRows], seeds: int) -> list[str]:
    lines = [f"Median over {seeds} seeds [smallest, largest]." if seeds > 1 else "One seed."]
    if layout.relative:
        lines.append("The first row is the metric in percent, the others are differences to it with the same seed.")
    judged = sorted({result["judged_on"] for one in found for row in one.rows for result in row.results})
    lines.append(
        f"Judged on {', '.join(judged)}; open numbers of a rule are fitted on training data that were held out."
    )
    lines.append("Speed-ups count layers of the whole encoder; they are no measurement of time.")
    if any(one.task == "mnli" for one in found):
        lines.append("MNLI is the mean of its two development sets; the CSV file has both.")
    for one in found:
        for row in one.rows:
            lines += [f"error: {one.task}, {row.name}: {error}" for error in row.errors]
    return lines


def write_table(path: Path, table: Table, lines: Sequence[dict[str, Any]], settings: Table) -> list[Path]:
    """`PATH.md`, `.tex`, `.csv` (a line a seed) and `.json`."""
    ends = {end: path.with_name(path.name + end) for end in (".md", ".tex", ".csv", ".json")}
    with atomic_write(ends[".md"]) as file:
        listed = "".join(f"- {note}\n" for note in table.notes)
        file.write(f"# {table.title}\n\n{table.to_markdown()}\n{listed}\n## Settings\n\n{settings.to_markdown()}")
    table.write(ends[".tex"])
    write_csv(ends[".csv"], lines)
    content = {"title": table.title, "rows": table.to_records(), "notes": table.notes}
    write_json(ends[".json"], {**content, "settings": settings.to_records(), "runs": list(lines)})
    return list(ends.values())
