"""An ablation's plots: accuracy against layer speed-up, and both over a number that was varied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.files import atomic_write
from beem_plugin.comparison.ablation.rows import Row, Spread, Sweep
from beem_plugin.comparison.ablation.trainings import file_name
from beem_plugin.rendering.plots import GREY, STYLE, plots_available

COLOURS = ("#1f6f9f", "#d9772b", "#3a8f5c", "#9a4f96", "#b8443c", "#6b6f2a", "#2aa3a3", "#7a5a3c", "#5b6fd0", "#c2518a")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
FORMATS = ("png", "svg")
FARTHEST = 3.0
"""Curves are drawn up to this speed-up, or to the fastest point if that is farther."""


def write_plots(rows: Sequence[Row], sweeps: Sequence[Sweep], directory: Path, title: str) -> list[str]:
    """Writes `ablation.png` and `.svg`, and `ablation_KEY` of each number that was swept; their names."""
    if not plots_available() or not any(row.results for row in rows):
        return []
    names = save(trade_off_figure(rows, sweeps, title), directory, "ablation")
    for key in dict.fromkeys(sweep.key for sweep in sweeps):
        figure = sweep_figure([sweep for sweep in sweeps if sweep.key == key], key)
        names += save(figure, directory, f"ablation_{file_name('_'.join(key.split('.')[-2:]))}")
    return names


def trade_off_figure(rows: Sequence[Row], sweeps: Sequence[Sweep], title: str) -> Any:
    """Each variant as a point with bars from the smallest to the largest seed, and its rule's curve."""
    figure, (axes,) = new_figure(9.2, 5.0, 1)
    judged = [row for row in rows if row.results]
    families = list(dict.fromkeys(row.variant.family for row in judged))
    speeds = [speed(row) for row in judged]
    farthest = max(FARTHEST, 1.08 * max(value.max for value in speeds))
    last = judged[0].spread("accuracy", "final_metrics")
    assert last is not None, "every result has an accuracy"
    axes.axhline(100 * last.median, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="base, last exit")
    # A sweep is a line through its own points; where a family is not swept, its rules' curves say how it goes on.
    swept = {id(row) for sweep in sweeps for row in sweep.rows}
    for sweep in sweeps:
        points = [(speed(row).median, accuracy(row).median) for row in sweep.rows]
        axes.plot(*zip(*sorted(points)), color=colour(families, sweep.rows[-1]), linewidth=1, alpha=0.6)
    shown: set[str] = set()
    for row in judged:
        family = row.variant.family
        place = families.index(family)
        x, y = speed(row), accuracy(row)
        axes.errorbar(
            x.median,
            y.median,
            xerr=bars(x),
            yerr=bars(y),
            fmt=MARKERS[place % len(MARKERS)],
            color=colour(families, row),
            # Points often coincide; the later ones are smaller and leave the others to be seen.
            markersize=10 - 5 * place / max(len(families) - 1, 1),
            markeredgecolor="white",
            elinewidth=1.2,
            label=None if family in shown else family,
            zorder=4,
        )
        shown.add(family)
        curve = None if id(row) in swept else row.curve()
        if curve is not None:
            inside = curve.speedup <= farthest
            axes.plot(
                curve.speedup[inside],
                100 * curve.accuracy[inside],
                color=colour(families, row),
                linewidth=1,
                alpha=0.35,
            )
    axes.set_xlim(0.97, farthest)
    lows, highs = [accuracy(row).min for row in judged], [accuracy(row).max for row in judged]
    low, high = min([*lows, 100 * last.median]), max([*highs, 100 * last.median])
    margin = max(0.25 * (high - low), 0.5)
    axes.set_ylim(low - margin, high + margin)
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.set_xlabel("layer speed-up")
    axes.set_ylabel(f"accuracy on {judged[0].results[0]['judged_on']} (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def sweep_figure(sweeps: Sequence[Sweep], key: str) -> Any:
    """Accuracy and layer speed-up over the number, smallest to largest seed shaded; and one against the other."""
    figure, (left, middle, right) = new_figure(11.0, 3.6, 3)
    name = ".".join(key.split(".")[-2:])
    for index, sweep in enumerate(sweeps):
        tint, mark = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        for axes, spreads in (
            (left, [accuracy(row) for row in sweep.rows]),
            (middle, [speed(row) for row in sweep.rows]),
        ):
            axes.plot(
                sweep.values,
                [value.median for value in spreads],
                mark + "-",
                color=tint,
                markersize=4.5,
                label=sweep.name,
            )
            axes.fill_between(
                sweep.values, [v.min for v in spreads], [v.max for v in spreads], color=tint, alpha=0.15, linewidth=0
            )
        x, y = [speed(row).median for row in sweep.rows], [accuracy(row).median for row in sweep.rows]
        right.plot(x, y, mark + "-", color=tint, markersize=4.5)
        for end in (0, -1):
            right.annotate(
                f"{sweep.values[end]:g}",
                (x[end], y[end]),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=8,
                color=tint,
            )
    source = sweeps[0].rows[0].results[0]["judged_on"]
    for axes, across, up in (
        (left, name, f"accuracy on {source} (%)"),
        (middle, name, "layer speed-up"),
        (right, "layer speed-up", f"accuracy on {source} (%)"),
    ):
        axes.set_xlabel(across)
        axes.set_ylabel(up)
    if len(sweeps) > 1 or sweeps[0].name:
        left.legend(frameon=False, fontsize=8)
    return figure


def colour(families: Sequence[str], row: Row) -> str:
    return COLOURS[families.index(row.variant.family) % len(COLOURS)]


def speed(row: Row) -> Spread:
    spread = row.spread("layer_speedup")
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


def new_figure(width: float, height: float, panels: int) -> tuple[Any, list[Any]]:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)
    return figure, list(axes.flatten())


def save(figure: Any, directory: Path, name: str) -> list[str]:
    import matplotlib

    names = [f"{name}.{kind}" for kind in FORMATS]
    with matplotlib.rc_context(STYLE):
        for kind, file in zip(FORMATS, names):
            with atomic_write(directory / file, "wb") as binary:
                options: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {"dpi": 160}
                figure.savefig(binary, format=kind, **options)
    return names
