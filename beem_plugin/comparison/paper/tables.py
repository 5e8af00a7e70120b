"""The paper's tables from judged runs: medians over seeds with their range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.comparison.paper.methods import METHODS, Layout, settings_of, shown_encoder
from beem_plugin.comparison.paper.runs import TaskRows, three_quarters
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.rendering.tables import Column, Estimate, Table, text, write_all

TASK_NAMES = {
    "cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "qqp": "QQP", "stsb": "STS-B", "mnli": "MNLI", "qnli": "QNLI",
    "rte": "RTE", "wnli": "WNLI",
}  # fmt: skip
METRICS = {"cola": "MCC", "stsb": "corr."}
Lines = Sequence[Mapping[str, Any]]


def spread(lines: Iterable[Mapping[str, Any]], key: str) -> Estimate | None:
    return Estimate.spread(line.get(key) for line in lines)


def paper_table(layout: Layout, lines: Lines, backbones: Sequence[str], methods: Sequence[str]) -> Table:
    """Of each encoder and method two columns a task: the metric in percent, and the layer speed-up."""
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    table = Table(text("model"), title=layout.title)
    for task in tasks:
        head = f"{TASK_NAMES.get(task, task)} {METRICS.get(task, 'Acc')}"
        table.columns += [Column(head, digits=1, sign=layout.relative, better="up")]
        table.columns += [Column(f"{TASK_NAMES.get(task, task)} Spd", unit="x")]
    plain = Column("", digits=1)
    for backbone, method in ((backbone, method) for backbone in backbones for method in methods):
        cells: list[Any] = [row_name(method, backbone)]
        for task in tasks:
            cell = {"encoder": backbone, "task": task, "method": method}
            own = [line for line in lines if cell.items() <= line.items()]
            value = spread(own, "difference" if layout.relative and method != "final" else "value")
            # What the others are differences to is not compared with them.
            cells += [plain.show(value) if layout.relative and method == "final" else value]
            cells += [spread(own, "layer_speedup")]
        table.rows.append(cells)
    return table


def row_name(method: str, backbone: str) -> str:
    encoder = shown_encoder(backbone)
    name = METHODS[method].row.format(encoder=encoder, layers=three_quarters(backbone))
    return name if "{encoder}" in METHODS[method].row else f"{encoder} {name}" if "large" in encoder else name


def settings_table(found: Iterable[tuple[Variant, str | None, str | None]]) -> Table:
    """What was run: of each method's variant, task and encoder its rate, optimizer, batch, epochs and rule."""
    columns = ("method", "task", "encoder", "rate", "optimizer", "batch", "epochs", "rule", "beams")
    records = [
        {"method": variant.name, "task": task, "encoder": encoder, **settings_of(variant)}
        for variant, task, encoder in found
    ]
    return Table.of_records(records, dict(zip(columns, text(*columns), strict=True)), "settings")


def notes(layout: Layout, found: Sequence[TaskRows], seeds: int) -> list[str]:
    lines = [f"Median over {seeds} seeds [smallest, largest]." if seeds > 1 else "One seed."]
    if layout.relative:
        lines.append("The first row is the metric in percent, the others are differences to it with the same seed.")
    rows = [(one.task, row) for one in found for row in one.rows]
    judged = ", ".join(sorted({result["judged_on"] for _, row in rows for result in row.results}))
    lines.append(f"Judged on {judged}; open numbers of a rule are fitted on training data that were held out.")
    lines.append("Speed-ups count layers of the whole encoder; they are no measurement of time.")
    if any(task == "mnli" for task, _ in rows):
        lines.append("MNLI is the mean of its two development sets; the CSV file has both.")
    return lines + [f"error: {task}, {row.name}: {error}" for task, row in rows for error in row.errors]


def write_table(path: Path, table: Table, lines: Lines, settings: Table) -> list[Path]:
    """`PATH.md`, `.tex`, `.csv` (a line a seed) and `.json`."""
    listed = "".join(f"- {note}\n" for note in table.notes)
    content = {"title": table.title, "rows": table.to_records(), "notes": table.notes}
    contents = {
        ".md": f"# {table.title}\n\n{table.to_markdown()}\n{listed}\n## Settings\n\n{settings.to_markdown()}",
        ".tex": table.to_latex(),
        ".csv": lines,
        ".json": {**content, "settings": settings.to_records(), "runs": list(lines)},
    }
    return write_all(path, contents)
