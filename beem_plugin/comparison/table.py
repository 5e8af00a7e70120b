"""Results as tables on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from beem_plugin.comparison.families import JudgedFamily, JudgedTrace

Row = tuple[str | None, dict[str, Any]]
MAX_ROWS = 40
"""Longer tables are cut, evenly, so that both ends of a sweep are seen; files have all rows."""


def print_results_table(judged: Sequence[JudgedTrace], metric: str = "accuracy") -> None:
    """
    One row a setting: metrics with early exit, those of the last exit, the layer speed-up, the average exit, and how
    many samples left at each exit. Rules with a curve come first, the largest area before the others, their settings
    from slow to fast; then the others by `metric`.

    # Parameters

    judged : `Sequence[JudgedTrace]`
    metric : `str`, optional (default = `"accuracy"`)
    """
    console = _console()
    several = len(judged) > 1
    rows: list[Row] = []
    for trace in judged:
        for family in sorted(trace.families, key=lambda family: _rank(family, metric)):
            ordered = sorted(family.results, key=lambda result: float(result["layer_speedup"]))
            rows += [(trace.name, result) for result in ordered]
    visible = _thinned(rows)
    names = list(dict.fromkeys(name for _, result in rows for name in result["metrics"]))
    caption = f"{len(visible)} of {len(rows)} settings; --csv and --output-file have all"
    table = Table(caption=caption if len(visible) < len(rows) else None)
    if several:
        table.add_column("trace")
    table.add_column("policy", overflow="fold")
    for name in names:
        table.add_column(name, justify="right")
        table.add_column("last exit", justify="right")
    table.add_column("layer speed-up", justify="right")
    table.add_column("average exit", justify="right")
    table.add_column("left at exit 1, 2, ...", overflow="fold")
    for trace_name, result in visible:
        cells = [str(trace_name)] if several else []
        cells.append(str(result["name"]))
        for name in names:
            cells += [percent(result["metrics"].get(name)), percent(result["final_metrics"].get(name))]
        cells += [f"{result['layer_speedup']:.2f}x", f"{result['average_exit']:.2f}"]
        table.add_row(*cells, " ".join(map(str, result["exit_histogram"])))
    console.print(table)
    _print_warnings(console, [result for _, result in rows])


def print_curves_table(curves: Sequence[dict[str, Any]], metric: str) -> None:
    """
    One row a curve, the largest area first: area from 1x to 3x, the value at 1.5x, 2x and 2.5x, and the last exit's.
    Of a rule that was judged on several traces, the mean over them and its standard error come first.

    # Parameters

    curves : `Sequence[dict[str, Any]]`
        As `comparison.replay_output.curve_rows` gives them.
    metric : `str`
    """
    names = list(dict.fromkeys(curve["name"] for curve in curves))
    groups = {name: [curve for curve in curves if curve["name"] == name] for name in names}
    several = any(len(group) > 1 for group in groups.values())
    speeds = list(curves[0]["at"])
    table = Table(title=f"{metric} against layer speed-up" + (", mean ± standard error over traces" if several else ""))
    table.add_column("policy", overflow="fold")
    for name in ("traces",) * several + ("settings", "area, 1x to 3x", *(f"at {speed}x" for speed in speeds)):
        table.add_column(name, justify="right")
    table.add_column("last exit", justify="right")
    rows = []
    for name, group in groups.items():
        area = mean_and_error([curve["area"] for curve in group])
        cells = [name, str(len(group))] if several else [name]
        cells.append(str(group[0]["settings"]))
        cells.append(with_error(area))
        cells += [with_error(mean_and_error([times(curve["at"][speed]) for curve in group])) for speed in speeds]
        cells.append(with_error(mean_and_error([times(curve["final"]) for curve in group])))
        rows.append((-math.inf if area is None else area[0], cells))
    for _, cells in sorted(rows, key=lambda row: -row[0]):
        table.add_row(*cells)
    _console().print(table)


def mean_and_error(values: Sequence[float | None]) -> tuple[float, float | None] | None:
    """The mean, and its standard error if there are two values or more; `None` if any is missing."""
    found = [value for value in values if value is not None]
    if not found or len(found) < len(values):
        return None
    mean = sum(found) / len(found)
    if len(found) < 2:
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in found) / (len(found) - 1) / len(found))


def with_error(value: tuple[float, float | None] | None) -> str:
    if value is None:
        return "-"
    return f"{value[0]:.2f}" if value[1] is None else f"{value[0]:.2f} ± {value[1]:.2f}"


def times(value: float | None) -> float | None:
    return None if value is None else 100 * value


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _rank(family: JudgedFamily, metric: str) -> tuple[bool, float]:
    area = None if family.curve is None else family.curve.area()
    if area is not None:
        return False, -area
    return True, -max((result["metrics"].get(metric, 0.0) for result in family.results), default=0.0)


def _thinned(rows: list[Row]) -> list[Row]:
    if len(rows) <= MAX_ROWS:
        return rows
    return [rows[round(index * (len(rows) - 1) / (MAX_ROWS - 1))] for index in range(MAX_ROWS)]


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _print_warnings(console: Console, results: Sequence[dict[str, Any]]) -> None:
    """Each warning once, with the first of those it is about."""
    about: dict[str, list[str]] = {}
    for result in results:
        for warning in result.get("warnings", []):
            about.setdefault(warning, []).append(str(result["name"]))
    for warning, names in about.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        console.print(f"{names[0]}{more}: {warning}", style="yellow", highlight=False)
