"""One style for all plots, and the plots themselves, of plain numbers. matplotlib is optional (extra `plots`)."""

import importlib.util
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write

BLUE, ORANGE, GREY, LIGHT, INK = "#0072b2", "#d55e00", "#7f8790", "#c9d0d8", "#2b3440"
COLOURS = (BLUE, ORANGE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STYLES: tuple[Any, ...] = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": "#b8c0ca",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eceff3",
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "beem_plugin",  # the same data give the same file
}
FARTHEST = 3.5  # panels end at this speed-up unless told otherwise
Points = tuple[Iterable[float], Iterable[float]]  # speed-ups, and values from 0 to 1


@dataclass
class Series:
    """One rule of a panel: a `line` and single `dots`; `bars` are the ranges of the first dot's speed-up and value."""

    label: str
    look: int
    line: Points | None = None
    dots: Points | None = None
    bars: tuple[tuple[float, float], tuple[float, float]] | None = None
    note: str = ""


@dataclass
class SpeedPanel:
    """Quality in percent against speed-up up to `farthest`; `last_exit` is a dashed line labelled `reference`."""

    ylabel: str
    last_exit: float
    series: list[Series] = field(default_factory=list)
    title: str = ""
    farthest: float = FARTHEST
    reference: str = "last exit"


def plots_available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def need_plots(flag: str) -> None:
    """Raises a `ConfigurationError` that names `flag` without matplotlib."""
    if not plots_available():
        raise ConfigurationError(f'{flag}: needs matplotlib, which is not installed; pip install "beem_plugin[plots]"')


def speed_plot(panels: Sequence[SpeedPanel]) -> Any:
    """A figure with one panel each and one legend below."""
    columns = 1 if len(panels) == 1 else 3 if len(panels) > 4 else 2
    lines = math.ceil(len(panels) / columns)
    labels = {series.label for panel in panels for series in panel.series}
    height = (4.2 if columns == 1 else 3.4) * lines + 0.22 * math.ceil((len(labels) + 1) / (2 * columns))
    figure, axes = new_figure(8.2 if columns == 1 else 5.2 * columns, height, lines, columns)
    for place, panel in zip(axes, panels, strict=False):
        _draw(place, panel)
    for place in axes[len(panels) :]:
        place.set_axis_off()
    handles = {label: handle for place in axes for handle, label in zip(*place.get_legend_handles_labels())}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=2 * columns)
    return figure


def _draw(axes: Any, panel: SpeedPanel) -> None:
    seen = [100 * panel.last_exit]
    axes.axhline(seen[0], color=GREY, linewidth=1, linestyle=(0, (4, 3)), label=panel.reference)

    def inside(points: Points) -> tuple[list[float], list[float]]:
        kept = [(x, 100 * y) for x, y in zip(*points, strict=True) if x <= panel.farthest]
        seen.extend(y for _, y in kept)
        return [x for x, _ in kept], [y for _, y in kept]

    for series in panel.series:
        grey = series.look < 0
        colour = GREY if grey else COLOURS[series.look % len(COLOURS)]
        label: str | None = series.label
        if series.line is not None:
            style = "-" if grey else STYLES[series.look % len(STYLES)]
            axes.plot(*inside(series.line), style, color=colour, linewidth=1 if grey else 1.8, label=label)
            label = None
        if series.dots is not None:
            x, y = inside(series.dots)
            mark, size = ("o", 3.5) if grey else (MARKERS[series.look % len(MARKERS)], 9 if series.note else 5.5)
            axes.plot(x, y, mark, color=colour, markersize=size, markeredgecolor="white", label=label, zorder=4)
            if x and series.bars is not None:
                axes.plot(series.bars[0], [y[0], y[0]], color=colour, linewidth=1.2, zorder=3)
                axes.plot([x[0], x[0]], [100 * y for y in series.bars[1]], color=colour, linewidth=1.2, zorder=3)
            if x and series.note:
                place = {"xytext": (8, 9), "textcoords": "offset points"}
                axes.annotate(series.note, (x[0], y[0]), color=colour, fontweight="bold", **place)
    low, high = min(seen), max(seen)
    margin = max(0.08 * (high - low), 0.5)
    axes.set(ylim=(low - margin, high + 1.5 * margin), xlim=(0.97, panel.farthest))
    axes.set(xlabel="layer speed-up", ylabel=panel.ylabel)
    if panel.title:
        axes.set_title(panel.title, fontsize=9.5, loc="left")


def exits_plot(counts: Sequence[int], wrong: Sequence[int] | None, samples: int) -> Any:
    """Bars of the share of `samples` that leaves at each exit, the wrong ones apart if they are known."""
    figure, (axes,) = new_figure(8.2, 2.9)
    exits = list(range(1, len(counts) + 1))
    share, wrong_share = ([100 * count / max(samples, 1) for count in given or ()] for given in (counts, wrong))
    bars = axes.bar(exits, share, color=BLUE, width=0.72, label="left here")
    axes.bar_label(bars, [f"{value:.1f}" if value > 0 else "" for value in share], padding=2, fontsize=8)
    if wrong is not None:
        axes.bar(exits, wrong_share, color=ORANGE, width=0.72, hatch="//", edgecolor="white", label="of which wrong")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    axes.grid(axis="x", visible=False)
    axes.set(xticks=exits, ylim=(0, 1.18 * max([*share, 1])), xlabel="exit", ylabel="samples (%)")
    return figure


def rates_plot(names: Sequence[str], rows: Sequence[dict[str, Any]], xlabel: str) -> Any:
    """Horizontal bars: `value`, the range `low` to `high`, a `mark` where there is one, and a `look` from 0 to 2."""
    figure, (axes,) = new_figure(8.2, 1.2 + 0.28 * len(rows))
    for place, row in enumerate(rows):
        axes.barh(place, row["value"], color=(BLUE, GREY, LIGHT)[row["look"]], height=0.7)
        axes.plot([row["low"], row["high"]], [place, place], color=INK)
        if row.get("mark") is not None:
            axes.plot(row["mark"], place, "|", color=ORANGE, markersize=12)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlabel(xlabel)
    return figure


def new_figure(width: float, height: float, lines: int = 1, columns: int = 1) -> tuple[Any, list[Any]]:
    """A figure in the common style, and its axes in a list."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False)
    return figure, list(axes.flatten())


def to_svg(figure: Any) -> str:
    """The figure as SVG text, the same for the same data."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def save_figure(figure: Any, *paths: str | Path) -> list[Path]:
    """Writes PNG or SVG, by each file's name; the paths."""
    from matplotlib import rc_context

    for path in paths:
        if str(path).lower().endswith(".svg"):
            with atomic_write(path) as file:
                file.write(to_svg(figure))
        else:
            with rc_context(STYLE), atomic_write(path, "wb") as file:
                figure.savefig(file, format="png", dpi=160)
        figure.set_layout_engine("none")  # it is laid out: that takes as long as to draw it
    return [Path(path) for path in paths]
