"""The tables, CSV records and panels of a replay."""

import json
import math
from collections.abc import Sequence
from typing import Any

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.comparison.operating_curve import Family, TraceResult
from beem_plugin.comparison.result import DEPTH, fixed_exits
from beem_plugin.evaluation.statistics import mean_and_error
from beem_plugin.rendering.plots import Series, SpeedPanel
from beem_plugin.rendering.tables import Column, Estimate, Table, text

MAX_ROWS = 40
"""Longer tables are cut on the terminal, evenly, so that both ends of a sweep are seen; files have all rows."""
MAX_DOTS = 40
SPLIT = ("offloaded", "edge_cost")
"""Figures of a network that is split between two machines, where `replay` is told so."""


def results_table(traces: Sequence[TraceResult], metric: str, max_rows: int | None = MAX_ROWS) -> Table:
    """
    One row a setting. Rules with a curve come first, the largest area before the others, their settings from slow to
    fast; then the others by `metric`. A column is added here: its head, and its cell of a `PolicyResult`.
    """
    rows = [
        (trace.name, result)
        for trace in traces
        for family in sorted(trace.families, key=lambda family: _rank(family, metric))
        for result in sorted(family.results, key=lambda one: one.layer_speedup)
    ]
    columns = {name: Column(name, "text") for name in ("trace", "policy")}
    for name in dict.fromkeys(name for _, result in rows for name in result.metrics):
        columns[name] = Column(name, factor=100, better="up")
        columns[f"final {name}"] = Column("last exit", factor=100, spare=True)
    columns["layer_speedup"] = Column("layer speed-up", unit="x", better="up")
    columns["offloaded"] = Column("offloaded", factor=100, unit=" %", digits=1)
    columns["edge_cost"] = Column("edge cost")
    columns["average_exit"] = Column("average exit", spare=True)
    columns["exit_histogram"] = Column("left at exit 1, 2, ...", "text", spare=True)
    visible = rows if max_rows is None else thinned(rows, max_rows)
    records = []
    for trace_name, result in visible:
        values = {**result.metrics, "layer_speedup": result.layer_speedup}
        record = {"trace": trace_name, "policy": result.name, **result.depth}
        record |= {name: Estimate(value, bounds=result.intervals.get(name)) for name, value in values.items()}
        record |= {f"final {name}": value for name, value in result.final_metrics.items()}
        records.append(record | {"exit_histogram": " ".join(map(str, result.depth["exit_histogram"]))})
    table = Table.of_records(records, columns)
    if len(visible) < len(rows):
        table.notes.append(f"{len(visible)} of {len(rows)} settings; --csv and --output-file have all")
    if any(result.intervals for _, result in rows):
        table.notes.append("[..]: 95 % intervals over samples")
    about: dict[str, list[str]] = {}
    for _, result in rows:
        for warning in result.warnings:
            about.setdefault(warning, []).append(result.name)
    for warning, names in about.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        table.notes.append(f"warning: {names[0]}{more}: {warning}")
    return table


def curves_table(curves: Sequence[dict[str, Any]], metric: str) -> Table:
    """
    One row a curve of `Replay.curves`, the largest area first: area from 1x to 3x, the value at 1.5x, 2x and 2.5x, and
    the last exit's. Over several traces these are means with their standard error.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for curve in curves:
        groups.setdefault(curve["name"], []).append(curve)
    several = any(len(group) > 1 for group in groups.values())
    columns = {"policy": Column("policy", "text"), "traces": Column("traces", digits=0)}
    columns |= {"settings": Column("settings", digits=0, spare=True), "area": Column("area, 1x to 3x", better="up")}
    columns |= {speed: Column(f"at {speed}x", factor=100, better="up") for speed in curves[0]["at"]}
    columns["final"] = Column("last exit", factor=100)
    records = []
    for name, group in groups.items():
        record: dict[str, Any] = {"policy": name, "settings": group[0]["settings"]}
        record["traces"] = len(group) if several else None
        record |= {key: _mean([curve[key] for curve in group]) for key in ("area", "final")}
        records.append(record | {speed: _mean([curve["at"][speed] for curve in group]) for speed in curves[0]["at"]})
    records.sort(key=lambda record: math.inf if record["area"] is None else -record["area"].value)
    title = f"{metric} against layer speed-up" + (", mean ± standard error over traces" if several else "")
    return Table.of_records(records, columns, title)


def pairs_table(pairs: Sequence[dict[str, Any]]) -> Table:
    """The paired tests of `Replay.pairs`."""
    columns = dict(zip(("trace", "first", "second"), text("trace", "policy", "against"), strict=True))
    columns["difference"] = Column("difference", factor=100, sign=True)
    columns |= {"p_value": Column("p", digits=3), "noise": Column("", "text")}
    records = []
    for pair in pairs:
        estimate = Estimate(pair["difference"], bounds=pair["interval"])
        records.append(pair | {"difference": estimate, "noise": "within noise" if pair["within_noise"] else ""})
    title = "accuracy on the same samples (McNemar's test); of all traces the metric, paired by trace (t-test)"
    return Table.of_records(records, columns, title)


def csv_records(traces: Sequence[TraceResult], metric: str) -> list[dict[str, Any]]:
    """One record a setting: what was swept in columns of its own, and its curve's numbers in each of its rows."""
    records = []
    for trace, family in [(one, family) for one in traces for family in one.families]:
        curve: dict[str, Any] = {}
        if family.curve is not None:
            found = family.summary(metric)
            curve[f"{metric}_area_1x_3x"] = found["area"]
            curve |= {f"{metric}_at_{speed}x": value for speed, value in found["at"].items()}
        for one in family.results:
            record: dict[str, Any] = {**trace.label, "family": family.name, "name": one.name}
            record |= {"n": one.n, "num_exits": one.num_exits}
            for key, value in (one.setting or {}).items():
                record[key] = value if isinstance(value, str | int | float) else json.dumps(value)
            record |= one.metrics | {f"final_{key}": value for key, value in one.final_metrics.items()}
            record |= {key: one.depth[key] for key in (*DEPTH, *SPLIT) if key in one.depth}
            record |= {"exit_histogram": " ".join(map(str, one.depth["exit_histogram"])), **curve}
            for key, (low, high) in one.intervals.items():
                record |= {f"{key}_low": low, f"{key}_high": high}
            records.append(record)
    return records


def speed_panels(traces: Sequence[TraceResult], metric: str) -> list[SpeedPanel]:
    """One panel a trace: the curve of every rule that has one, settings as dots, all samples at the same exit."""
    traces = [trace for trace in traces if bool(trace.trace.known.any())]
    if not traces:
        raise ConfigurationError("--plot: found no trace with labels, allowed: one or more")
    looks = {name: look for look, name in enumerate(dict.fromkeys(f.name for trace in traces for f in trace.families))}
    panels = []
    for trace in traces:
        last = trace.families[0].results[0].final_metrics[metric]
        fixed = fixed_exits(trace.trace, metric).scaled(trace.scale)
        series = [Series("all samples at one exit", -1, fixed.line(), (fixed.speedup, fixed.accuracy))]
        panel = SpeedPanel(f"{metric} (%)", last, series, trace.name or "")
        for family in trace.families:
            line, dots = None if family.curve is None else family.curve.line(), None
            if family.curve is None or len(family.results) <= MAX_DOTS:
                dots = [one.layer_speedup for one in family.results], [one.metrics[metric] for one in family.results]
            series.append(Series(family.name, looks[family.name], line, dots))
        panels.append(panel)
    return panels


def thinned(rows: list[Any], count: int) -> list[Any]:
    """At most `count` of the rows, evenly, both ends included."""
    return rows if len(rows) <= count else [rows[round(i * (len(rows) - 1) / (count - 1))] for i in range(count)]


def _mean(values: Sequence[float | None]) -> Estimate | None:
    """The mean, and its standard error if there are two values or more; `None` if any is missing."""
    found = [value for value in values if value is not None]
    if not found or len(found) < len(values):
        return None
    mean, error = mean_and_error(found)
    return Estimate(mean, error if len(found) > 1 else None)


def _rank(family: Family, metric: str) -> tuple[bool, float]:
    area = None if family.curve is None else family.curve.area()
    if area is not None:
        return False, -area
    return True, -max((result.metrics.get(metric, 0.0) for result in family.results), default=0.0)
