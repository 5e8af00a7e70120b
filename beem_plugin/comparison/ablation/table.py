"""An ablation as a table with notes, and as plots: accuracy against layer speed-up, and both over a varied number."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np

from beem_plugin.calibration.curves import Curve
from beem_plugin.comparison.ablation.rows import BLOCKS, Row, Sweep, reference_of
from beem_plugin.comparison.ablation.variant_files import in_one_line
from beem_plugin.comparison.trainings.runs import file_name
from beem_plugin.comparison.trainings.variants import BASE
from beem_plugin.rendering.plots import COLOURS, MARKERS, Series, SpeedPanel, new_figure, speed_plot
from beem_plugin.rendering.tables import Column, Estimate, Table, text

HEADS = {
    "layer_speedup_over_base": "layer speed-up",
    "mac_speedup_over_base": "MAC speed-up",
    "measured_speedup_over_base": "measured speed-up",
}
SPEED = "layer speed-up"
FARTHEST = 3.0  # curves are drawn up to this speed-up, or to the fastest point if that is farther


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
    table = Table.of_records([record(row) for row in rows], columns, title)
    table.notes = [explanation(rows), *notes(rows)]
    return table


def name_of_reference(rows: Sequence[Row]) -> str:
    reference = reference_of(rows)
    return BASE if reference is None else reference.name


def record(row: Row) -> dict[str, Any]:
    """The row's values by column; of a variant without results "failed" in place of the first metric."""
    own = f"plain, {row.variant.plain} layers" if row.variant.plain else in_one_line(row.differences)
    found = {"name": row.name, "differences": own, **row.figures()}
    if not row.results:
        return found | {"metrics.accuracy": "failed"}
    first = row.results[0]
    if len(row.results) == 1 and (interval := first.get("intervals", {}).get("accuracy")) is not None:
        found["metrics.accuracy"] = replace(found["metrics.accuracy"], bounds=interval)
    found |= {} if row.difference is None else {"difference": row.difference.text()}
    found["parameters"] = f"{first['parameters'] / 1e6:.2f}M (exits {first['exit_parameters'] / 1e6:.2f}M)"
    return found | {"calibrated_on": first["calibrated_on"] or "(given)"}


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


def csv_record(row: Row) -> dict[str, Any]:
    """Every number in a column of its own: `accuracy`, `accuracy_min`, `accuracy_max`, ..."""
    line: dict[str, Any] = {"name": row.name, "diff": in_one_line(row.differences, whole_keys=True)}
    line |= {"training": row.training, "seeds": len(row.results), "error": "; ".join(row.errors)}
    for key, value in row.figures().items():
        name = key.replace("final_metrics.", "last_exit_").removeprefix("metrics.")
        if isinstance(value, Estimate):
            line |= {name: value.value, f"{name}_min": value.ends[0], f"{name}_max": value.ends[1]}
        elif value is not None:
            line[name] = value
    if row.difference is not None:
        line |= {"difference_from_base": row.difference.difference, "difference_p_value": row.difference.p_value}
    return line


def figures_of(rows: Sequence[Row], sweeps: Sequence[Sweep], title: str) -> dict[str, Any]:
    """By file name: `ablation`, and `ablation_KEY` of each number that was swept; `rows` have results."""
    figures = {"ablation": trade_off_figure(rows, sweeps, title)}
    for key in dict.fromkeys(sweep.key for sweep in sweeps):
        name = f"ablation_{file_name('_'.join(key.split('.')[-2:]))}"
        figures[name] = sweep_figure([sweep for sweep in sweeps if sweep.key == key], key)
    return figures


def trade_off_figure(rows: Sequence[Row], sweeps: Sequence[Sweep], title: str) -> Any:
    """Each variant as a point with bars from the smallest to the largest seed, and its rule's curve."""
    looks = {name: look for look, name in enumerate(dict.fromkeys(row.variant.family for row in rows))}
    farthest = max(FARTHEST, 1.08 * max(speed(row).ends[1] for row in rows))
    panel = SpeedPanel(ylabel(rows[0]), quality(rows[0], "final_metrics").value, [], title, farthest)
    # The points of a sweep are joined, and plain networks by what they reach together; elsewhere a rule's own curve is.
    joined = [(sweep.rows[-1].variant.family, sweep.rows, False) for sweep in sweeps]
    for family in looks:
        members = [row for row in rows if row.variant.family == family and row.variant.plain]
        joined += [(family, members, True)] if len(members) > 1 else []
    for family, members, as_mixture in joined:
        x, y = np.array(sorted((speed(row).value, quality(row).value) for row in members)).T
        x, y = Curve(y, x, [None] * len(x)).line() if as_mixture else (x, y)
        panel.series.append(Series(family, looks[family], (x, y)))
    swept = {id(row) for sweep in sweeps for row in sweep.rows}
    for row in rows:
        x, y = speed(row), quality(row)
        series = Series(row.variant.family, looks[row.variant.family], dots=([x.value], [y.value]))
        series.bars = x.ends, y.ends
        curve = None if id(row) in swept else row.curve()
        if curve is not None:
            scale = row.results[0]["layer_speedup_over_base"] / row.results[0]["layer_speedup"]
            series.line = scale * curve.speedup, curve.accuracy
        panel.series.append(series)
    return speed_plot([panel])


def sweep_figure(sweeps: Sequence[Sweep], key: str) -> Any:
    """Accuracy and layer speed-up over the number, smallest to largest seed shaded; and one against the other."""
    figure, axes = new_figure(11.0, 3.6, 1, 3)
    name, percent = ".".join(key.split(".")[-2:]), ylabel(sweeps[0].rows[0])
    for place, across, up in zip(axes, (name, name, SPEED), (percent, SPEED, percent), strict=True):
        place.set(xlabel=across, ylabel=up)
    for sweep, tint, mark in zip(sweeps, cycle(COLOURS), cycle(MARKERS)):
        look = {"color": tint, "markersize": 4.5}
        medians = []
        for place, measure, factor in zip(axes, (quality, speed), (100, 1)):
            found = [(measure(row).value, *measure(row).ends) for row in sweep.rows]
            median, low, high = factor * np.array(found).T
            medians.append(median)
            place.plot(sweep.values, median, f"{mark}-", label=sweep.name, **look)
            place.fill_between(sweep.values, low, high, color=tint, alpha=0.15, linewidth=0)
        axes[2].plot(*reversed(medians), f"{mark}-", **look)
        for end in (0, -1):
            where = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 8, "color": tint}
            axes[2].annotate(f"{sweep.values[end]:g}", (medians[1][end], medians[0][end]), **where)
    if len(sweeps) > 1 or sweeps[0].name:
        axes[0].legend(fontsize=8)
    return figure


def speed(row: Row) -> Estimate:
    spread = row.spread("layer_speedup_over_base")
    assert spread is not None, "a row with results"
    return spread


def quality(row: Row, block: str = "metrics") -> Estimate:
    """Accuracy, or the task's metric where there is none."""
    spread = row.spread("accuracy", block) or row.spread(row.main_metric, block)
    assert spread is not None, "a row with results"
    return spread


def ylabel(row: Row) -> str:
    name = "accuracy" if "accuracy" in row.results[0]["metrics"] else row.main_metric
    return f"{name} on {row.results[0]['judged_on']} (%)"
