"""A benchmark as a plot: sentences or images a second, and what the layer count promised."""

from __future__ import annotations

import io
from typing import Any

from beem_plugin.rendering.plots import BLUE, GREY, LIGHT, ORANGE, STYLE


def benchmark_plot(report: dict[str, Any]) -> str:
    """
    The report's plot as SVG; needs matplotlib.

    # Parameters

    report : `dict[str, Any]`
        As `evaluation.benchmark.run_benchmark` gives it.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = report["measured"]
    colours = {"exits": BLUE, "full_depth": GREY, "nobody_leaves": LIGHT}
    speedup = report["counted"]["layer_speedup"]
    what = "images" if "images_per_second" in rows[0] else "sentences"
    with rc_context(STYLE):
        figure = Figure(figsize=(8.2, 1.2 + 0.28 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for place, row in enumerate(rows):
            axes.barh(place, row[f"{what}_per_second"], color=colours[row["case"]], height=0.7)
            samples = report["counted"]["samples"]
            axes.plot([samples / row["seconds_max"], samples / row["seconds_min"]], [place, place], color="#2b3440")
            if row["case"] == "full_depth":
                axes.plot(speedup * row[f"{what}_per_second"], place, "|", color=ORANGE, markersize=12)
        labels = [f"{row['engine']}, {row['case'].replace('_', ' ')}, batch {row['batch_size']}" for row in rows]
        axes.set_yticks(range(len(rows)), labels)
        axes.invert_yaxis()
        axes.set_xlabel(f"{what} a second, measured on {report['device']}; orange: times the layer speed-up, counted")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
