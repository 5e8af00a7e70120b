"""What `evaluate` measured as one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from beem_plugin.rendering.pages import data_uri, render_page
from beem_plugin.rendering.plots import exits_plot, plots_available
from beem_plugin.rendering.tables import Column, Table


def evaluation_page(archive: str, source: str, metrics: dict[str, Any], tables: Sequence[Table]) -> str:
    """
    # Parameters

    archive, source : `str`
        What was evaluated, and on which data.
    metrics : `dict[str, Any]`
        As `evaluate_archive` gives them.
    tables : `Sequence[Table]`
        Those of the task.
    """
    histogram = metrics["exit_histogram"]
    share = [100 * count / max(sum(histogram), 1) for count in histogram]
    plots = plots_available()
    return render_page(
        "evaluation.html",
        archive=archive,
        source=source,
        metrics=metrics,
        cards=_cards(metrics),
        warnings=metrics.get("warnings", []),
        plots=plots,
        exits_image=data_uri(exits_plot(share, None)) if plots else None,
        exits_table=exits_table(histogram),
        tables=tables,
        policy=json.dumps(metrics["exit_policy"], indent=2),
    )


def exits_table(histogram: Sequence[int]) -> Table:
    """How many samples (of captions, tokens) left at each exit."""
    total = max(sum(histogram), 1)
    columns = [
        Column("exit", digits=0),
        Column("left here", digits=0),
        Column("share", digits=1, unit=" %", factor=100),
    ]
    return Table(columns, [[number, count, count / total] for number, count in enumerate(histogram, 1)])


def _cards(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    intervals = metrics.get("intervals", {})
    cards = []
    for name, value in metrics.items():
        if not isinstance(value, float):
            continue
        percents = 0 <= value <= 1 and "speedup" not in name
        factor, unit = (100, " %") if percents else (1, "x" if name.endswith("speedup") else "")
        label = name.replace("_", " ")
        if (interval := intervals.get(name)) is not None:
            label += f", 95 % interval {factor * interval[0]:.2f} - {factor * interval[1]:.2f}"
        cards.append((f"{factor * value:.2f}{unit}", label))
    return cards
