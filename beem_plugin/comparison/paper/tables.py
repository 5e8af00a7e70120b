"""Trains and judges a table's methods on its tasks, and lays the paper's tables out: medians over seeds with range."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from beem_plugin.backbones.loading import make_config, read_config
from beem_plugin.calibration.curves import SPEEDS
from beem_plugin.comparison.ablation.rows import Row
from beem_plugin.comparison.paper.methods import METHODS, Layout, settings_of, shown_encoder
from beem_plugin.comparison.report import markdown, write_report
from beem_plugin.comparison.rules import Records, curve_record, differences_table, save_traces
from beem_plugin.comparison.trainings.trainings import Trainings
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.data.hub import resolve_model_name
from beem_plugin.rendering.tables import Column, Estimate, Table, text, write_all

TASK_NAMES = {
    "cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "qqp": "QQP", "stsb": "STS-B", "mnli": "MNLI", "qnli": "QNLI",
    "rte": "RTE", "wnli": "WNLI",
}  # fmt: skip
METRICS = {"cola": "MCC", "stsb": "corr."}
Lines = Sequence[Mapping[str, Any]]
DEPTHS = {"large": 24}
BASE_DEPTH = 12  # layers of an encoder in the hub, by a part of its name; a local one is looked at


@dataclass
class TaskRows:
    """All methods on one task with one encoder."""

    backbone: str
    task: str
    trainings: Trainings
    rows: list[Row]

    def speed(self, result: dict[str, Any]) -> float:
        """The layer speed-up over the whole encoder."""
        return float(depth_of(self.backbone) / result["depth"] * result["layer_speedup"])

    def lines(self) -> list[dict[str, Any]]:
        """One a method and seed, for tables and files: `value` is the task's metric in percent."""
        judged = [(row.name, result["seed"], result) for row in self.rows for result in row.results]
        values = {(name, seed): 100 * value_of(result) for name, seed, result in judged}
        lines = []
        for name, seed, result in judged:
            base = values.get(("final", seed))
            line = {"encoder": self.backbone, "task": self.task, "method": name, "seed": seed}
            line["value"] = values[name, seed]
            line |= {} if base is None else {"difference": line["value"] - base}
            line["layer_speedup"] = self.speed(result)
            for part, metrics in {"": result["metrics"], **result["parts"]}.items():
                line |= {f"{part}_{key}" if part else key: 100 * number for key, number in metrics.items()}
            last, curve = result["final_metrics"].get("accuracy"), curve_record(result["curve"])
            line |= {"final": None if last is None else 100 * last, **curve}
            lines.append(line | {key: result[key] for key in ("parameters", "training_seconds", "calibrated_on")})
        return lines


def value_of(result: dict[str, Any]) -> float:
    """
    A judgement's number for the table: Matthews correlation of CoLA, Pearson/Spearman of STS-B, else accuracy; of
    several test sets, as MNLI's two, the mean.
    """
    metrics, main = result["metrics"], result["main_metric"]
    name = main if "accuracy" not in metrics or "matthews" in metrics else "accuracy"
    return fmean(part[name] for part in result["parts"].values() or [metrics])


def depth_of(encoder: str) -> int:
    """Layers of an encoder, without access to the hub."""
    name = resolve_model_name(encoder, "--backbone")
    if Path(name).is_dir():
        return int(make_config(read_config(name, "--backbone"), "--backbone").num_hidden_layers)
    return next((layers for part, layers in DEPTHS.items() if part in name), BASE_DEPTH)


def three_quarters(encoder: str) -> int:
    """Layers of the network that is cut down: 9 of 12."""
    return max(1, 3 * depth_of(encoder) // 4)


def export_traces(tables: Sequence[TaskRows], folder: Path) -> None:
    """
    Writes METHOD/TASK-SEED/ with `calibration.npz` and `validation.npz`, which `scripts/compare_policies` reads, once
    for each training. BEEM's is "beem".
    """
    for table, row in [(one, row) for one in tables for row in one.rows]:
        variant = row.variant
        if variant is table.trainings.of[row.name].variants[0]:
            name = "beem" if row.name.startswith("beem") else row.name
            for run in table.trainings.trained(row.name):
                save_traces(run, variant, folder / name / f"{table.task}-{run.run.seed - 1}")


def write_swept(lines: Lines, against: str, path: Path) -> None:
    """
    `PATH.md`: each method with one threshold for all exits, swept: tables by task, and paired differences of areas.
    """
    found = Records([{**line, "method": row_name(line["method"], line["encoder"])} for line in lines], "method")
    titles = {"final": "accuracy of the last exit", **{f"at_{speed}": f"accuracy at {speed}x" for speed in SPEEDS}}
    titles["area"] = "area under the accuracy-speed curve, 1x to 3x (mean ± standard error over seeds)"
    references = dict.fromkeys(found.tasks, against)
    tables = [found.table(figure, title) for figure, title in titles.items()]
    tables.append(differences_table(found.differences("area", references), references))
    for table in tables:
        table.print(200)
    write_all(path, {".md": "\n".join(map(markdown, tables))})


def spread(lines: Iterable[Mapping[str, Any]], key: str) -> Estimate | None:
    return Estimate.spread(line.get(key) for line in lines)


def paper_table(layout: Layout, found: Sequence[TaskRows], lines: Lines) -> Table:
    """A row an encoder and method, two columns a task: the metric in percent, and the layer speed-up."""
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    table = Table(text("model"), title=layout.title)
    for task in tasks:
        head = f"{TASK_NAMES.get(task, task)} {METRICS.get(task, 'Acc')}"
        table.columns += [Column(head, digits=1, sign=layout.relative, better="up")]
        table.columns += [Column(f"{TASK_NAMES.get(task, task)} Spd", unit="x")]
    plain = Column("", digits=1)
    for backbone, method in dict.fromkeys((one.backbone, row.name) for one in found for row in one.rows):
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


def write_table(path: Path, table: Table, lines: Lines, settings: Table) -> None:
    """Writes the table with `settings`, and a line a seed."""
    content = {"title": table.title, "rows": table.to_records(), "notes": table.notes}
    content |= {"settings": settings.to_records(), "runs": list(lines)}
    write_report(path, table, content, lines, more=f"## Settings\n\n{settings.to_markdown()}")
