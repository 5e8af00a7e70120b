"""An ablation as a table, with notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from beem_plugin.comparison.ablation.difference import in_one_line
from beem_plugin.comparison.ablation.rows import SPREADS, Row, Spread
from beem_plugin.rendering.tables import Column, Estimate, Table, text

LAYERS = "layer_speedup_over_base"
HEADS = {
    LAYERS: "layer speed-up",
    "mac_speedup_over_base": "MAC speed-up",
    "measured_speedup_over_base": "measured speed-up",
}


def ablation_table(rows: Sequence[Row], title: str) -> Table:
    """One row a variant, the base first. A column is added here: its head, and its cell of a `Row`."""
    metrics = metric_names(rows)
    columns = text("variant", "differs from base in")
    for name in metrics:
        columns += [Column(f"{name} {kind}", factor=100) for kind in ("early exit", "last exit")]
    columns += [Column(HEADS[name], unit="x") for name in speeds(rows)]
    columns += [Column("average exit"), *text("against base", "calibrated on", "judged on")]
    columns += [Column("training s", digits=0), *text("parameters")]
    table = Table(columns, [cells(row, metrics, speeds(rows)) for row in rows], title, [explanation(rows)])
    table.notes += notes(rows)
    return table


def speeds(rows: Sequence[Row]) -> list[str]:
    """The speed-ups over the base that any row has; layers always."""
    return [name for name in HEADS if name == LAYERS or any(row.spread(name) is not None for row in rows)]


def metric_names(rows: Sequence[Row]) -> list[str]:
    """Accuracy, and the task's own metric if that is another."""
    judged = [row for row in rows if row.results]
    return list(dict.fromkeys(["accuracy", *(row.main_metric for row in judged)])) if judged else []


def cells(row: Row, metrics: Sequence[str], speeds: Sequence[str] = (LAYERS,)) -> list[Any]:
    """The row's cells; of a variant without results "failed" after its name and difference."""
    head = [row.name, in_one_line(row.differences)]
    if not row.results:
        return [*head, "failed", *[""] * (2 * len(metrics) + len(speeds) + 5)]
    first = row.results[0]
    values: list[Any] = [
        estimate(row.spread(name, block)) for name in metrics for block in ("metrics", "final_metrics")
    ]
    values += [estimate(row.spread(name)) for name in (*speeds, "average_exit")]
    values += [
        "" if row.difference is None else row.difference.text(),
        str(first["calibrated_on"] or "(given)"),
        str(first["judged_on"]),
    ]
    values.append(estimate(row.spread("training_seconds")))
    return [*head, *values, f"{first['parameters'] / 1e6:.2f}M (exits {first['exit_parameters'] / 1e6:.2f}M)"]


def estimate(spread: Spread | None) -> Estimate | str:
    """The median, with smallest and largest where seeds differ."""
    return "" if spread is None else Estimate(spread.median, bounds=(spread.min, spread.max))


def notes(rows: Sequence[Row]) -> list[str]:
    """Chosen settings, errors, and warnings, each with the variants that it is about."""
    lines = []
    for row in rows:
        if row.settings:
            tried = [entry["validation_score"] for entry in row.settings]
            scores = [score for score in tried if score is not None]
            listed = f"; validation scores {min(scores):.4f} to {max(scores):.4f}" if scores else ""
            lines.append(f"{row.name}: the best of {len(row.settings)} settings on validation data{listed}")
        lines += [f"{row.name}: error: {error}" for error in row.errors]
    about: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        for result in row.results:
            for warning in result["warnings"]:
                about.setdefault((warning, result["seed"]), []).append(row)
    judged = sum(bool(row.results) for row in rows)
    for (warning, seed), members in about.items():
        which = "all variants" if len(members) == judged > 1 else named(members)
        lines.append(f"warning: {which}, seed {seed}: {warning}")
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
    test = "paired t-test over seeds" if seeds > 1 else "McNemar's test on the samples"
    return (
        f"{spread}Metrics in percent. Speed-ups are against the base at full depth: layers, multiply-accumulates, and "
        "with --measure seconds; last exit is the variant's whole network. Against base: difference of accuracy, "
        f"{test}. Variants with the same training seconds share one training."
    )


def markdown(table: Table, plots: Sequence[str]) -> str:
    """The table, what it means, notes, and links to the plots."""
    lines = [f"# {table.title}", "", table.notes[0], "", table.to_markdown()]
    lines += [*(f"- {line}" for line in table.notes[1:]), ""] if len(table.notes) > 1 else []
    lines += [f"![{name}]({name})" for name in plots if name.endswith(".svg")]
    return "\n".join(lines).rstrip() + "\n"


def csv_record(row: Row) -> dict[str, Any]:
    """Every number in a column of its own: `accuracy`, `accuracy_min`, `accuracy_max`, ..."""
    line: dict[str, Any] = {"name": row.name, "diff": in_one_line(row.differences, whole_keys=True)}
    line.update(training=row.training, seeds=len(row.results), error="; ".join(row.errors))
    if not row.results:
        return line
    first = row.results[0]
    line.update({key: first[key] for key in ("calibrated_on", "judged_on", "samples", "parameters", "exit_parameters")})
    spreads = [(name, row.spread(name, "metrics")) for name in first["metrics"]]
    spreads += [(f"last_exit_{name}", row.spread(name, "final_metrics")) for name in first["final_metrics"]]
    spreads += [(name, row.spread(name)) for name in SPREADS]
    for name, spread in spreads:
        if spread is not None:
            line.update({name: spread.median, f"{name}_min": spread.min, f"{name}_max": spread.max})
    if row.difference is not None:
        line |= {"difference_from_base": row.difference.difference, "difference_p_value": row.difference.p_value}
    return line
