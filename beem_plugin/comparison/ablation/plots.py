"""An ablation's plots: accuracy against layer speed-up, and both over a number that was varied."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from beem_plugin.comparison.ablation.rows import Row, Spread, Sweep
from beem_plugin.comparison.ablation.trainings import file_name
from beem_plugin.rendering.plots import (
    COLOURS,
    MARKERS,
    Series,
    SpeedPanel,
    new_figure,
    plots_available,
    save_figure,
    speed_plot,
)

FORMATS = ("png", "svg")
SPEED = "layer speed-up"
FARTHEST = 3.0
"""Curves are drawn up to this speed-up, or to the fastest point if that is farther."""


def write_plots(rows: Sequence[Row], sweeps: Sequence[Sweep], directory: Path, title: str) -> list[str]:
    """Writes `ablation.png` and `.svg`, and `ablation_KEY` of each number that was swept; their names."""
    if not plots_available() or not any(row.results for row in rows):
        return []
    figures = {"ablation": trade_off_figure(rows, sweeps, title)}
    for key in dict.fromkeys(sweep.key for sweep in sweeps):
        name = f"ablation_{file_name('_'.join(key.split('.')[-2:]))}"
        figures[name] = sweep_figure([sweep for sweep in sweeps if sweep.key == key], key)
    names = [f"{name}.{kind}" for name in figures for kind in FORMATS]
    for name, figure in figures.items():
        for kind in FORMATS:
            save_figure(figure, directory / f"{name}.{kind}")
    return names


def trade_off_figure(rows: Sequence[Row], sweeps: Sequence[Sweep], title: str) -> Any:
    """Each variant as a point with bars from the smallest to the largest seed, and its rule's curve."""
    judged = [row for row in rows if row.results]
    families = list(dict.fromkeys(row.variant.family for row in judged))
    last = judged[0].spread("accuracy", "final_metrics")
    assert last is not None, "every result has an accuracy"
    farthest = max(FARTHEST, 1.08 * max(speed(row).max for row in judged))
    source = judged[0].results[0]["judged_on"]
    panel = SpeedPanel(f"accuracy on {source} (%)", 100 * last.median, [], title, farthest)
    # The points of a sweep are joined; elsewhere a rule's own curve is drawn.
    swept = {id(row) for sweep in sweeps for row in sweep.rows}
    for sweep in sweeps:
        points = sorted((speed(row).median, accuracy(row).median) for row in sweep.rows)
        look = families.index(sweep.rows[-1].variant.family)
        panel.series.append(
            Series(sweep.rows[-1].variant.family, look, line=([x for x, _ in points], [y for _, y in points]))
        )
    for row in judged:
        x, y = speed(row), accuracy(row)
        series = Series(row.variant.family, families.index(row.variant.family), dots=([x.median], [y.median]))
        series.bars = bars(x), bars(y)
        curve = None if id(row) in swept else row.curve()
        if curve is not None:
            scale = row.results[0]["layer_speedup_over_base"] / row.results[0]["layer_speedup"]
            series.line = (scale * curve.speedup).tolist(), (100 * curve.accuracy).tolist()
        panel.series.append(series)
    return speed_plot([panel])


def sweep_figure(sweeps: Sequence[Sweep], key: str) -> Any:
    """Accuracy and layer speed-up over the number, smallest to largest seed shaded; and one against the other."""
    figure, axes = new_figure(11.0, 3.6, 1, 3)
    name, percent = ".".join(key.split(".")[-2:]), f"accuracy on {sweeps[0].rows[0].results[0]['judged_on']} (%)"
    for place, across, up in zip(axes, (name, name, SPEED), (percent, SPEED, percent), strict=True):
        place.set(xlabel=across, ylabel=up)
    for sweep, tint, mark in zip(sweeps, cycle(COLOURS), cycle(MARKERS)):
        look = {"color": tint, "markersize": 4.5}
        medians = []
        for place, measure in zip(axes, (accuracy, speed)):
            found = [measure(row) for row in sweep.rows]
            medians.append([one.median for one in found])
            place.plot(sweep.values, medians[-1], f"{mark}-", label=sweep.name, **look)
            low, high = [one.min for one in found], [one.max for one in found]
            place.fill_between(sweep.values, low, high, color=tint, alpha=0.15, linewidth=0)
        axes[2].plot(*reversed(medians), f"{mark}-", **look)
        for end in (0, -1):
            where = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 8, "color": tint}
            axes[2].annotate(f"{sweep.values[end]:g}", (medians[1][end], medians[0][end]), **where)
    if len(sweeps) > 1 or sweeps[0].name:
        axes[0].legend(fontsize=8)
    return figure


def speed(row: Row) -> Spread:
    spread = row.spread("layer_speedup_over_base")
    assert spread is not None, "a row with results"
    return spread


def accuracy(row: Row) -> Spread:
    """In percent."""
    spread = row.spread("accuracy", "metrics")
    assert spread is not None, "a row with results"
    return Spread(100 * spread.median, 100 * spread.min, 100 * spread.max)


def bars(spread: Spread) -> list[list[float]] | None:
    if spread.min == spread.max:
        return None
    return [[spread.median - spread.min], [spread.max - spread.median]]
