"""What `evaluate` measured as one HTML page."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from beem_plugin.rendering.pages import data_uri, render_page
from beem_plugin.rendering.plots import exits_plot, plots_available
from beem_plugin.rendering.tables import Column, Table


def evaluation_page(archive: str, source: str, metrics: dict[str, Any], tables: Sequence[Table]) -> str:
    """The `metrics` of `evaluate_archive` on `source`, and the task's own tables."""
    histogram = metrics["exit_histogram"]
    plots = plots_available()
    return render_page(
        "evaluation.html",
        archive=archive,
        source=source,
        metrics=metrics,
        cards=_cards(metrics),
        warnings=metrics.get("warnings", []),
        plots=plots,
        exits_image=data_uri(exits_plot(histogram, None, sum(histogram))) if plots else None,
        exits_table=exits_table(histogram),
        tables=tables,
        policy=json.dumps(metrics["exit_policy"], indent=2),
    )


def exits_table(histogram: Sequence[int]) -> Table:
    """How many samples (of captions, tokens) left at each exit."""
    total = max(sum(histogram), 1)
    columns = [Column(name, digits=0) for name in ("exit", "left here")]
    columns.append(Column("share", digits=1, unit=" %", factor=100))
    return Table(columns, [[number, count, count / total] for number, count in enumerate(histogram, 1)])


def shown_figure(name: str, value: float) -> str:
    """A metric as text: shares in percent, speed-ups with an x, averages as they are."""
    if "speedup" in name:
        return f"{value:.2f}x"
    return f"{100 * value:.2f} %" if 0 <= value <= 1 and not name.startswith("average") else f"{value:.2f}"


def shown_figures(metrics: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Of each number its name, value, 95 % interval and the last exit's value as text, empty where there is none."""
    intervals, last = metrics.get("intervals", {}), metrics.get("last_exit", {})
    for name, value in metrics.items():
        if isinstance(value, float):
            interval = " to ".join(shown_figure(name, bound) for bound in intervals.get(name, ()))
            final = shown_figure(name, last[name]) if name in last else ""
            yield name.replace("_", " "), shown_figure(name, value), interval, final


def _cards(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    cards = []
    for name, value, interval, last in shown_figures(metrics):
        label = name + (f", 95 % interval {interval}" if interval else "") + (f", last exit {last}" if last else "")
        cards.append((value, label))
    return cards
