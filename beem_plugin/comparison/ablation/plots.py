"""An ablation's plots: accuracy against layer speed-up, and both over a number that was varied."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from beem_plugin.calibration.curves import Curve
from beem_plugin.comparison.ablation.rows import Row, Sweep
from beem_plugin.comparison.trainings.runs import file_name
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
from beem_plugin.rendering.tables import Estimate

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
    written = [
        save_figure(figure, *(directory / f"{name}.{kind}" for kind in FORMATS)) for name, figure in figures.items()
    ]
    return [path.name for paths in written for path in paths]


def trade_off_figure(rows: Sequence[Row], sweeps: Sequence[Sweep], title: str) -> Any:
    """Each variant as a point with bars from the smallest to the largest seed, and its rule's curve."""
    judged = [row for row in rows if row.results]
    looks = {name: look for look, name in enumerate(dict.fromkeys(row.variant.family for row in judged))}
    farthest = max(FARTHEST, 1.08 * max(speed(row).ends[1] for row in judged))
    panel = SpeedPanel(ylabel(judged[0]), quality(judged[0], "final_metrics").value, [], title, farthest)
    # The points of a sweep are joined, and plain networks by what they reach together; elsewhere a rule's own curve is.
    joined = [(sweep.rows[-1].variant.family, sweep.rows, False) for sweep in sweeps]
    for family in looks:
        members = [row for row in judged if row.variant.family == family and row.variant.plain]
        joined += [(family, members, True)] if len(members) > 1 else []
    for family, members, as_mixture in joined:
        x, y = np.array(sorted((speed(row).value, quality(row).value) for row in members)).T
        x, y = Curve(y, x, [None] * len(x)).line() if as_mixture else (x, y)
        panel.series.append(Series(family, looks[family], (x.tolist(), y.tolist())))
    swept = {id(row) for sweep in sweeps for row in sweep.rows}
    for row in judged:
        x, y = speed(row), quality(row)
        series = Series(row.variant.family, looks[row.variant.family], dots=([x.value], [y.value]))
        series.bars = x.ends, y.ends
        curve = None if id(row) in swept else row.curve()
        if curve is not None:
            scale = row.results[0]["layer_speedup_over_base"] / row.results[0]["layer_speedup"]
            series.line = (scale * curve.speedup).tolist(), (100 * curve.accuracy).tolist()
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
        for place, measure in zip(axes, (quality, speed)):
            found = [measure(row) for row in sweep.rows]
            medians.append([one.value for one in found])
            place.plot(sweep.values, medians[-1], f"{mark}-", label=sweep.name, **look)
            low, high = zip(*(one.ends for one in found), strict=True)
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
    """Accuracy, or the task's metric where there is none, in percent."""
    spread = row.spread("accuracy", block) or row.spread(row.main_metric, block)
    assert spread is not None, "a row with results"
    low, high = spread.ends
    return Estimate(100 * spread.value, bounds=(100 * low, 100 * high))


def ylabel(row: Row) -> str:
    name = "accuracy" if "accuracy" in row.results[0]["metrics"] else row.main_metric
    return f"{name} on {row.results[0]['judged_on']} (%)"
