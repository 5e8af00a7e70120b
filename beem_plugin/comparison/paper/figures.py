"""The figures: accuracy against speed over alpha, and BEEM-C over lambda. Methods are under their own training."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from beem_plugin.common.params import apply_overrides
from beem_plugin.comparison.ablation.ablate import ablate
from beem_plugin.comparison.ablation.rows import Row
from beem_plugin.comparison.paper.methods import METHODS
from beem_plugin.comparison.paper.tables import TASK_NAMES
from beem_plugin.comparison.trainings.launcher import Launcher
from beem_plugin.comparison.trainings.trainings import Trainings
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.rendering.plots import Series, SpeedPanel, plots_available, save_figure, speed_plot
from beem_plugin.rendering.tables import write_csv

LAMBDAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
JOINT_SPEEDS = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
"""At which BEEM gets a threshold for each exit, as one for all does not suit a score that grows with depth."""
ALPHA = 1.5  # the threshold of the figure over lambda, the last of the paper's grid


def run_figure(plans: Mapping[tuple[str, str], Trainings], launcher: Launcher, path: Path) -> list[Path]:
    """
    Trains what is missing of each encoder and task, whose variants are `figure_variants`, and writes `PATH.csv`, and
    with matplotlib `.svg` and `.png`.
    """
    lines: list[dict[str, Any]] = []
    panels = []
    for (backbone, task), rows in zip(plans, ablate(list(plans.values()), launcher), strict=True):
        points = {family: points_of(family, rows) for family in dict.fromkeys(row.variant.family for row in rows)}
        for name, found in points.items():
            cell = {"encoder": backbone, "task": task, "series": name}
            lines += [{**cell, **point, "accuracy": 100 * point["accuracy"]} for point in found]
        panels.append(panel(task, points, rows))
    write_csv(path.with_suffix(".csv"), lines)
    written = [path.with_suffix(".csv")]
    if plots_available():
        written += save_figure(speed_plot(panels), path.with_suffix(".svg"), path.with_suffix(".png"))
    return written


def figure_variants(kind: str, variants: Sequence[Variant], depth: int) -> list[Variant]:
    """The methods, patience by number of exits, BEEM also with joint thresholds; or BEEM-C for every lambda."""
    found = list(variants) if kind == "alpha" else []
    for variant in variants:
        family = variant.family
        grid: dict[Any, dict[str, Any]] = {}
        if kind == "lambda":
            grid = {scale: {"weights.scale": scale, "thresholds": ALPHA} for scale in LAMBDAS}
        elif variant.policy["type"] == "patience":
            grid = {count: {"patience": count} for count in range(1, depth)}
        elif variant.policy["type"] == "beem":
            family = f"{variant.name}, a threshold an exit"
            grid = {speed: {"thresholds": {"type": "joint", "speedup": speed}} for speed in JOINT_SPEEDS}
        for shown, values in grid.items():
            own = {f"model.exit_policy.{key}": value for key, value in values.items()}
            config = apply_overrides(variant.config, own)
            name = f"{family} {shown}"
            found.append(replace(variant, name=name, family=family, config=config, setting={"setting": shown}))
    return found


def points_of(family: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """From slow to fast: a rule's curve over all thresholds, the median of the seeds, or a point a setting."""
    own = [row for row in rows if row.variant.family == family and row.results]
    found = []
    for row in (row for row in own if row.variant.setting):
        accuracy, speed = row.spread("accuracy", "metrics"), row.spread("layer_speedup")
        assert accuracy is not None and speed is not None, "a row with results"
        found.append((row.variant.setting["setting"], accuracy.value, speed.value))
    curve = own[0].curve() if own and not found else None
    if curve is not None:
        found = [(None, *point) for point in zip(curve.accuracy.tolist(), curve.speedup.tolist(), strict=True)]
    points = [{"setting": one, "accuracy": value, "layer_speedup": speed} for one, value, speed in found]
    return sorted(points, key=lambda point: point["layer_speedup"])


def panel(task: str, points: dict[str, list[dict[str, Any]]], rows: Sequence[Row]) -> SpeedPanel:
    finals = [result["final_metrics"]["accuracy"] for row in rows for result in row.results]
    series = []
    for look, (name, found) in enumerate(points.items()):
        method, *more = name.split(", ")
        line = [point["layer_speedup"] for point in found], [point["accuracy"] for point in found]
        series.append(Series(", ".join([METHODS[method].row, *more]), look, line))
    return SpeedPanel("accuracy (%)", statistics.median(finals), series, TASK_NAMES.get(task, task))
