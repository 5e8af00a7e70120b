"""An ablation as a table, with notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from beem_plugin.comparison.ablation.difference import in_one_line
from beem_plugin.comparison.ablation.rows import SPREADS, Row, reference_of
from beem_plugin.comparison.trainings.variants import BASE
from beem_plugin.rendering.tables import Column, Table, text

HEADS = {
    "layer_speedup_over_base": "layer speed-up",
    "mac_speedup_over_base": "MAC speed-up",
    "measured_speedup_over_base": "measured speed-up",
}
BLOCKS = {"metrics": "early exit", "final_metrics": "last exit"}


def ablation_table(rows: Sequence[Row], title: str) -> Table:
    """One row a variant, the base first. A column is added here: its head, and its value in `record`."""
    metrics = list(dict.fromkeys(["accuracy", *(row.main_metric for row in rows if row.results)]))
    columns = dict(zip(("name", "differences"), text("variant", "differs from base in"), strict=True))
    for name in metrics:
        columns |= {f"{block}.{name}": Column(f"{name} {kind}", factor=100) for block, kind in BLOCKS.items()}
    columns |= {name: Column(head, unit="x") for name, head in HEADS.items()}
    columns["average_exit"] = Column("average exit")
    heads = f"against {name_of_reference(rows)}", "calibrated on", "judged on"
    columns |= dict(zip(("difference", "calibrated_on", "judged_on"), text(*heads), strict=True))
    columns |= {"training_seconds": Column("training s", digits=0), "parameters": Column("parameters", "text")}
    table = Table.of_records([record(row, metrics) for row in rows], columns, title)
    table.notes = [explanation(rows), *notes(rows)]
    return table


def name_of_reference(rows: Sequence[Row]) -> str:
    reference = reference_of(rows)
    return BASE if reference is None else reference.name


def record(row: Row, metrics: Sequence[str]) -> dict[str, Any]:
    """The row's values by column; of a variant without results "failed" in place of the first metric."""
    own = f"plain, {row.variant.plain} layers" if row.variant.plain else in_one_line(row.differences)
    found: dict[str, Any] = {"name": row.name, "differences": own}
    if not row.results:
        return found | {"metrics.accuracy": "failed"}
    first = row.results[0]
    found |= {f"{block}.{name}": row.spread(name, block) for block in BLOCKS for name in metrics}
    found |= {name: row.spread(name) for name in (*HEADS, "average_exit", "training_seconds")}
    if len(row.results) == 1 and (interval := first.get("intervals", {}).get("accuracy")) is not None:
        found["metrics.accuracy"] = replace(found["metrics.accuracy"], bounds=interval)
    if row.difference is not None:
        found["difference"] = row.difference.text()
    parameters = f"{first['parameters'] / 1e6:.2f}M (exits {first['exit_parameters'] / 1e6:.2f}M)"
    found |= {"calibrated_on": str(first["calibrated_on"] or "(given)"), "judged_on": str(first["judged_on"])}
    return found | {"parameters": parameters}


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
    spread = f"Median over {seeds} seeds [smallest, largest]. " if seeds > 1 else "One seed [95 % interval, samples]. "
    test = "paired t-test over seeds" if seeds > 1 else "McNemar's test on the samples"
    name = name_of_reference(rows)
    return (
        f"{spread}Metrics in percent. Speed-ups are against {name} at full depth: layers, multiply-accumulates, and "
        f"with --measure seconds; last exit is the variant's whole network. Against {name}: difference of accuracy, "
        f"{test}. Variants with the same training seconds share one training."
    )


def markdown(table: Table, plots: Sequence[str]) -> str:
    """The table, what it means, notes, and links to the plots."""
    lines = [f"# {table.title}", "", table.notes[0], "", table.to_markdown()]
    lines += [*(f"- {line}" for line in table.notes[1:]), ""] if len(table.notes) > 1 else []
    lines += [f"![{name}]({name})" for name in plots if name.endswith(".svg")]
    return "\n".join(lines).rstrip() + "\n"


def csv_record(content: dict[str, Any]) -> dict[str, Any]:
    """Of `Row.to_json`, every number in a column of its own: `accuracy`, `accuracy_min`, `accuracy_max`, ..."""
    line = {key: content[key] for key in ("name", "diff", "training")}
    line |= {"seeds": len(content.get("seeds", [])), "error": "; ".join(content["errors"])}
    if not line["seeds"]:
        return line
    line |= {key: content[key] for key in ("calibrated_on", "judged_on", "samples", "parameters", "exit_parameters")}
    spreads = content["metrics"] | {f"last_exit_{name}": spread for name, spread in content["final_metrics"].items()}
    spreads |= {name: content[name] for name in SPREADS}
    for name, spread in spreads.items():
        if spread is not None:
            line |= {name: spread["median"], f"{name}_min": spread["min"], f"{name}_max": spread["max"]}
    if (difference := content.get("difference_from_base")) is not None:
        line |= {"difference_from_base": difference["difference"], "difference_p_value": difference["p_value"]}
    return line
