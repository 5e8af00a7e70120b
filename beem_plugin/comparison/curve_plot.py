"""Accuracy against layer speed-up, as PNG or SVG. matplotlib is optional: it comes with the extra `plots`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from beem_plugin.calibration.curves import Curve
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write
from beem_plugin.comparison.families import JudgedFamily, JudgedTrace
from beem_plugin.comparison.measuring import measure
from beem_plugin.rendering.plots import BLUE, GREY, ORANGE, STYLE, plots_available

COLOURS = (BLUE, ORANGE, "#3c8d5a", "#8a5aa8", "#b8433f", "#7a6a3a", "#2aa3a3", "#d36ba6", "#5566cc", "#99a83d")
STYLES: tuple[Any, ...] = ("-", "--", ":", "-.")
FARTHEST = 3.5
MAX_DOTS = 40


def write_curve_plot(path: str, judged: Sequence[JudgedTrace], metric: str) -> None:
    """
    One panel a trace: the curve of every rule that has one, the settings that were given as dots, all samples at the
    same exit, and the last exit. Curves are drawn as they are interpolated, straight in the depth.

    # Parameters

    path : `str`
        Ends in `.png` or `.svg`.
    judged : `Sequence[JudgedTrace]`
    metric : `str`

    # Raises

    `ConfigurationError`
        Without matplotlib, or without a labelled trace.
    """
    if not plots_available():
        raise ConfigurationError('--plot: needs matplotlib, which is not installed; pip install "beem_plugin[plots]"')
    judged = [trace for trace in judged if bool(trace.trace.known.any())]
    if not judged:
        raise ConfigurationError(
            "--plot: found no trace with labels, allowed: at least one, as there is no metric else"
        )
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(len(judged), 3 if len(judged) > 4 else 2)
    lines = math.ceil(len(judged) / columns)
    names = list(dict.fromkeys(family.name for trace in judged for family in trace.families))
    looks = {name: _look(number) for number, name in enumerate(names)}
    kind = Path(path).suffix.lower().removeprefix(".")
    with rc_context({**STYLE, "svg.hashsalt": "curves"}):
        width = 8.2 if columns == 1 else 5.2 * columns
        # Under the panels, as many rules as there may be.
        legend_lines = math.ceil((len(names) + 2) / (2 * columns))
        figure = Figure(
            figsize=(width, (4.2 if columns == 1 else 3.4) * lines + 0.22 * legend_lines), layout="constrained"
        )
        panels = figure.subplots(lines, columns, squeeze=False).flatten()
        for panel, trace in zip(panels, judged, strict=False):
            _draw(panel, trace, metric, looks)
        for panel in panels[len(judged) :]:
            panel.set_axis_off()
        handles = {
            label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=2 * columns, frameon=False
        )
        with atomic_write(path, "wb") as file:
            figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)


def _draw(axes: Any, judged: JudgedTrace, metric: str, looks: dict[str, tuple[str, Any]]) -> None:
    final = 100 * judged.families[0].results[0]["final_metrics"][metric]
    axes.axhline(final, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="last exit")
    fixed = fixed_exits(judged.trace, metric)
    seen = [final, *_line(axes, fixed, color=GREY, linewidth=1, alpha=0.8, label="all samples at one exit")]
    reached = fixed.speedup <= FARTHEST
    axes.plot(fixed.speedup[reached], 100 * fixed.accuracy[reached], "o", color=GREY, markersize=3.5)
    for family in judged.families:
        colour, style = looks[family.name]
        label: str | None = family.name
        if family.curve is not None:
            seen += _line(axes, family.curve, color=colour, linestyle=style, linewidth=1.8, label=label)
            label = None
        if family.curve is None or len(family.results) <= MAX_DOTS:
            seen += _dots(axes, family, metric, colour, label)
    low, high = min(seen), max(seen)
    margin = max(0.06 * (high - low), 0.5)
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(0.97, FARTHEST)
    axes.set_xlabel("layer speed-up")
    axes.set_ylabel(f"{metric} (%)")
    if judged.name is not None:
        axes.set_title(judged.name, fontsize=9.5, loc="left")


def _line(axes: Any, curve: Curve, **look: Any) -> list[float]:
    """Draws a curve as far as the panel goes; the values seen there."""
    speed, value = curve.line()
    inside = speed <= FARTHEST
    axes.plot(speed[inside], 100 * value[inside], **look)
    found: list[float] = (100 * value[inside]).tolist()
    return found


def _dots(axes: Any, family: JudgedFamily, metric: str, colour: str, label: str | None) -> list[float]:
    points = [(result["layer_speedup"], 100 * result["metrics"][metric]) for result in family.results]
    points = [point for point in points if point[0] <= FARTHEST]
    if points:
        look = {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.8, "zorder": 4}
        axes.plot(*zip(*points, strict=True), "o", color=colour, label=label, **look)
    return [value for _, value in points]


def fixed_exits(trace: ExitTrace, metric: str) -> Curve:
    """All samples at one exit, from the last exit to the first."""
    predictions, layers = trace.predictions, trace.exit_layers
    columns = range(trace.num_exits - 1, -1, -1)
    values = [measure(trace, predictions[:, column], [metric])[metric] for column in columns]
    speeds = [layers[-1] / layers[column] for column in columns]
    return Curve(np.array(values), np.array(speeds), [column + 1 for column in columns])


def _look(number: int) -> tuple[str, Any]:
    return COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
