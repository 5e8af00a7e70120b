"""The figures: accuracy against speed over alpha, and BEEM-C over lambda. Methods are under their own training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from beem_plugin.common.params import apply_overrides
from beem_plugin.comparison.ablation.ablate import ablate
from beem_plugin.comparison.ablation.rows import Row
from beem_plugin.comparison.paper.methods import METHODS
from beem_plugin.comparison.paper.runs import Plan, depth_of
from beem_plugin.comparison.paper.tables import TASK_NAMES
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.rendering.plots import Series, SpeedPanel, plots_available, save_figure, speed_plot
from beem_plugin.rendering.tables import write_csv

LAMBDAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
JOINT_SPEEDS = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
"""At which BEEM gets a threshold for each exit, as one for all does not suit a score that grows with depth."""
ALPHA = 1.5
"""The threshold of the figure over lambda, the last of the paper's grid."""


def run_figure(kind: str, given: Plan, jobs: int = 1, devices: Sequence[str] = ()) -> list[Path]:
    """Trains what is missing, and writes `figure_KIND.csv`, and with matplotlib `.svg` and `.png`."""
    lines: list[dict[str, Any]] = []
    panels = []
    for backbone, task in given.cells():
        variants = figure_variants(kind, given.variants(backbone, task), depth_of(backbone))
        rows = ablate(given.trainings(backbone, task, variants), jobs, devices=devices)
        families = dict.fromkeys(row.variant.family for row in rows)
        points = lambda_points(rows) if kind == "lambda" else {one: alpha_points(one, rows) for one in families}
        for name, found in points.items():
            lines += [{"encoder": backbone, "task": task, "series": name, **point} for point in found]
        panels.append(panel(task, points, rows))
    path = given.output / f"figure_{kind}"
    write_csv(path.with_suffix(".csv"), lines)
    written = [path.with_suffix(".csv")]
    if plots_available():
        written += save_figure(speed_plot(panels), path.with_suffix(".svg"), path.with_suffix(".png"))
    return written


def figure_variants(kind: str, variants: Sequence[Variant], depth: int) -> list[Variant]:
    """
    The methods, of patience one variant for each number of exits, BEEM with joint thresholds as well; or BEEM-C for
    every lambda.
    """
    found = list(variants) if kind == "alpha" else []
    for variant in variants:
        family = variant.family
        grid: list[dict[str, Any]] = []
        if kind == "lambda":
            grid = [
                {"model.exit_policy.weights.scale": scale, "model.exit_policy.thresholds": ALPHA} for scale in LAMBDAS
            ]
        elif variant.policy["type"] == "patience":
            grid = [{"model.exit_policy.patience": count} for count in range(1, depth)]
        elif variant.policy["type"] == "beem":
            family = f"{variant.name}, a threshold an exit"
            thresholds = [{"type": "joint", "speedup": speed} for speed in JOINT_SPEEDS]
            grid = [{"model.exit_policy.thresholds": joint} for joint in thresholds]
        for setting in grid:
            value = next(iter(setting.values()))
            shown = value["speedup"] if isinstance(value, dict) else value
            config = apply_overrides(variant.config, setting)
            found.append(replace(variant, name=f"{family} {shown}", family=family, config=config, setting=setting))
    return found


def point_of(row: Row, setting: Any = None) -> dict[str, Any]:
    accuracy, speed = row.spread("accuracy", "metrics"), row.spread("layer_speedup")
    assert accuracy is not None and speed is not None, "a row with results"
    return {"setting": setting, "accuracy": 100 * accuracy.value, "layer_speedup": speed.value}


def alpha_points(family: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """From slow to fast: a rule's curve over all thresholds, the median of the seeds, or a point a setting."""
    own = [row for row in rows if row.variant.family == family and row.results]
    grid = [row for row in own if row.variant.setting]
    if grid:
        found = [point_of(row, row.name.removeprefix(family).strip()) for row in grid]
        return sorted(found, key=lambda point: point["layer_speedup"])
    curve = own[0].curve() if own else None
    if curve is None:
        return []
    return [
        {"setting": None, "accuracy": 100 * accuracy, "layer_speedup": speed}
        for accuracy, speed in zip(curve.accuracy.tolist(), curve.speedup.tolist(), strict=True)
    ]


def lambda_points(rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    found = [point_of(row, row.variant.setting["model.exit_policy.weights.scale"]) for row in rows if row.results]
    return {"beem-c": found}


def panel(task: str, points: dict[str, list[dict[str, Any]]], rows: Sequence[Row]) -> SpeedPanel:
    finals = [result["final_metrics"]["accuracy"] for row in rows for result in row.results]
    series = [
        Series(
            ", ".join([METHODS[name.partition(",")[0]].row, *name.split(", ")[1:]]),
            look,
            line=([point["layer_speedup"] for point in found], [point["accuracy"] for point in found]),
        )
        for look, (name, found) in enumerate(points.items())
    ]
    return SpeedPanel("accuracy (%)", 100 * statistics.median(finals), series, TASK_NAMES.get(task, task))
