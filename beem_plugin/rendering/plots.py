"""The plots of a calibration report, as SVG. matplotlib is optional: it comes with the extra `plots`."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

BLUE, ORANGE, GREY, LIGHT, INK = "#1f6f9f", "#d9772b", "#8b95a1", "#dfe4ea", "#2b3440"
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
    "svg.hashsalt": "calibration",  # the same report gives the same file
}


def plots_available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def curve_plot(evidence: dict[str, Any]) -> str:
    """Accuracy against layer speed-up: the rule's curve, the fixed exits, the last exit, and the chosen point."""
    report, fixed, curve = evidence["calibration"], evidence["fixed_exits"], evidence["curve"]
    figure, (axes,) = _figure(8.2, 4.2)
    final = 100 * (1 - report["final_error"])
    chosen = report["layer_speedup"], 100 * (1 - report["error"])
    farthest = max(3.0, 1.25 * chosen[0])
    axes.axhline(final, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label=f"last exit, {final:.1f} %")
    seen = [final, chosen[1]]
    inside = [index for index, speed in enumerate(fixed["speedup"]) if speed <= farthest]
    seen += [100 * fixed["accuracy"][index] for index in inside]
    axes.plot(
        [fixed["speedup"][index] for index in inside],
        [100 * fixed["accuracy"][index] for index in inside],
        "o-",
        color=GREY,
        markersize=4,
        linewidth=1,
        alpha=0.8,
        label="all samples at the same exit",
    )
    if curve is not None:
        points = [(s, 100 * a) for s, a in zip(curve["speedup"], curve["accuracy"], strict=True) if s <= farthest]
        seen += [accuracy for _, accuracy in points]
        axes.plot(*zip(*points, strict=True), color=BLUE, linewidth=2, label="this score, one threshold for all exits")
    axes.plot(
        *chosen, "o", color=ORANGE, markersize=9, markeredgecolor="white", markeredgewidth=1.5, label="chosen", zorder=5
    )
    axes.annotate(
        f"{chosen[0]:.2f}x, {chosen[1]:.1f} %",
        chosen,
        xytext=(8, 9),
        textcoords="offset points",
        color=ORANGE,
        fontweight="bold",
    )
    low, high = min(seen), max(seen)
    margin = max(0.08 * (high - low), 0.5)
    axes.set_ylim(low - margin, high + 2 * margin)
    axes.set_xlim(0.97, farthest)
    axes.set_xlabel("layer speed-up")
    axes.set_ylabel("accuracy on the calibration data (%)")
    axes.legend(loc="lower left", frameon=False)
    return _svg(figure)


def histogram_plot(evidence: dict[str, Any]) -> str:
    """How many samples leave at each exit, the wrong ones apart."""
    report = evidence["calibration"]
    figure, (axes,) = _figure(8.2, 2.9)
    total = max(report["samples"], 1)
    exits = [entry["exit"] for entry in report["evidence"]]
    share = [100 * count / total for count in report["exit_histogram"]]
    axes.bar(exits, share, color=BLUE, width=0.72, label="left here")
    if report["error"] is not None:
        wrong = [100 * entry["errors"] / total for entry in report["evidence"]]
        axes.bar(exits, wrong, color=ORANGE, width=0.72, label="of which wrong")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    for number, value in zip(exits, share, strict=True):
        if value > 0:
            axes.annotate(
                f"{value:.1f}", (number, value), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8
            )
    axes.set_xticks(exits)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, 1.18 * max([*share, 1]))
    axes.set_xlabel("exit")
    axes.set_ylabel("samples (%)")
    return _svg(figure)


def reliability_plot(rows: Sequence[dict[str, Any]]) -> str:
    """One small diagram an exit: accuracy against confidence, before and after confidence calibration."""
    columns = min(4, len(rows))
    lines = math.ceil(len(rows) / columns)
    figure, axes = _figure(8.2, 2.25 * lines + 0.3, lines, columns)
    for panel, row in zip(axes, rows, strict=False):
        panel.plot([0, 1], [0, 1], color=LIGHT, linewidth=1.2, zorder=1)
        _reliability_line(panel, row["before"], GREY if row["after"] else BLUE)
        title = f"exit {row['exit']}   ECE {100 * row['ece_before']:.1f}"
        if row["after"]:
            _reliability_line(panel, row["after"], BLUE)
            title += f" → {100 * row['ece_after']:.1f}"
        panel.set_title(title, fontsize=8.5, loc="left")
        panel.set_xlim(0, 1.03)
        panel.set_ylim(0, 1.05)
        panel.set_xticks([0, 0.5, 1])
        panel.set_yticks([0, 0.5, 1])
    for panel in axes[len(rows) :]:
        panel.set_visible(False)
    figure.supxlabel("confidence", fontsize=9.5)
    figure.supylabel("accuracy", fontsize=9.5)
    return _svg(figure)


def _reliability_line(axes: Any, bins: Sequence[dict[str, Any]], color: str) -> None:
    filled = [entry for entry in bins if entry["samples"]]
    total = sum(entry["samples"] for entry in filled)
    x, y = [entry["confidence"] for entry in filled], [entry["accuracy"] for entry in filled]
    axes.plot(x, y, color=color, linewidth=1.4, zorder=2)
    axes.scatter(
        x, y, s=[6 + 70 * entry["samples"] / total for entry in filled], color=color, alpha=0.75, zorder=3, linewidths=0
    )


def _figure(width: float, height: float, lines: int = 1, columns: int = 1) -> tuple[Any, list[Any]]:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False)
    return figure, list(axes.flatten())


def _svg(figure: Any) -> str:
    import matplotlib

    with matplotlib.rc_context(STYLE):
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
