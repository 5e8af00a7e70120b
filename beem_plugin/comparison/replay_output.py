"""What `allennlp replay` puts into files."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from typing import Any

from beem_plugin.calibration.curves import SPEEDS
from beem_plugin.common.files import atomic_write
from beem_plugin.comparison.families import CURVE_POINTS, JudgedFamily, JudgedTrace

DEPTH = ("layer_speedup", "layers_saved", "average_exit", "average_layer")


def result_rows(judged: Sequence[JudgedTrace]) -> list[dict[str, Any]]:
    """The results of all traces, each with its `name`, and with its `trace` where there are several."""
    rows = []
    for trace in judged:
        label = {} if trace.name is None else {"trace": trace.name}
        for family in trace.families:
            rows += [{"name": result["name"], **label, **result} for result in family.results]
    return rows


def curve_rows(judged: Sequence[JudgedTrace], metric: str, with_points: bool) -> list[dict[str, Any]]:
    """One entry a curve: `area`, the value `at` each speed-up, that of the last exit, and points to draw if wanted."""
    rows = []
    for trace in judged:
        for family in trace.families:
            if family.curve is None:
                continue
            row: dict[str, Any] = {"name": family.name}
            if trace.name is not None:
                row["trace"] = trace.name
            row |= {"settings": len(family.results), **summary(family, metric)}
            if with_points:
                shown = family.curve.thinned(CURVE_POINTS)
                points = {"layer_speedup": shown.speedup.tolist(), metric: shown.accuracy.tolist()}
                row["points"] = {**points, "settings": shown.settings}
            rows.append(row)
    return rows


def summary(family: JudgedFamily, metric: str) -> dict[str, Any]:
    """
    `metric`, its value at the last exit (`final`), `area` from 1x to 3x in points, and the value `at` 1.5x, 2x, 2.5x;
    `None` where the curve does not reach.
    """
    assert family.curve is not None
    return {
        "metric": metric,
        "final": family.results[0]["final_metrics"][metric],
        "area": family.curve.area(),
        "at": {str(speed): family.curve.at(speed) for speed in SPEEDS},
    }


def write_results_csv(path: str, judged: Sequence[JudgedTrace], metric: str) -> None:
    """One row a setting: what was swept in columns of its own, and its curve's numbers in each of its rows."""
    rows = []
    for trace in judged:
        for family in trace.families:
            curve = None if family.curve is None else summary(family, metric)
            rows += [_csv_row(trace.name, family.name, result, curve, metric) for result in family.results]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with atomic_write(path) as file:
        writer = csv.DictWriter(file, fieldnames=columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _csv_row(
    trace: str | None, family: str, result: dict[str, Any], curve: dict[str, Any] | None, metric: str
) -> dict[str, Any]:
    row: dict[str, Any] = {} if trace is None else {"trace": trace}
    row |= {"family": family, "name": result["name"], "n": result["n"], "num_exits": result["num_exits"]}
    row |= {key: _cell(value) for key, value in result.get("setting", {}).items()}
    row |= result["metrics"]
    row |= {f"final_{key}": value for key, value in result["final_metrics"].items()}
    row |= {key: result[key] for key in DEPTH}
    row["exit_histogram"] = " ".join(map(str, result["exit_histogram"]))
    if curve is not None:
        row[f"{metric}_area_1x_3x"] = curve["area"]
        row |= {f"{metric}_at_{speed}x": value for speed, value in curve["at"].items()}
    return row


def _cell(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else json.dumps(value)
