"""Captioners of several methods in one table, from the captions that their runs left."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.caption_metrics import DEFAULT_METRICS, CaptionScores
from beem_plugin.common.errors import DataError
from beem_plugin.common.strict_json import read_json
from beem_plugin.comparison.caption_scores import SPEEDS, cider_difference, score_rows
from beem_plugin.comparison.caption_table import FULL_DEPTH

FILE_NAME = "captions.json"
KEYS = ("method", "seed", "exit_layers", "rows", "references")
"""What is used of the file: `rows` and `references` are those of `decoded_rows`."""

REFERENCE = "final"
"""The method whose full depth the others are compared with: the network that was trained without exits."""

CONTROL = "final, captions of other images"


def read_caption_runs(folder: Path) -> list[dict[str, Any]]:
    """All `METHOD/SEED/captions.json` under `folder`, those without exits first."""
    paths = sorted(folder.glob(f"*/*/{FILE_NAME}"))
    if not paths:
        raise DataError(f"{folder}: holds no METHOD/SEED/{FILE_NAME}")
    runs = []
    for path in paths:
        run = read_json(path)
        missing = [key for key in KEYS if not isinstance(run, dict) or key not in run]
        if missing:
            raise DataError(f"{path}: lacks {', '.join(missing)}")
        runs.append(run)
    return sorted(runs, key=lambda run: {REFERENCE: 0, "reduced": 1}.get(run["method"], 2))


def compared_rows(
    runs: Sequence[Mapping[str, Any]], metrics: Sequence[str] = DEFAULT_METRICS, spice_jars: str | None = None
) -> list[dict[str, Any]]:
    """
    A row for each method and rule, means over seeds; see `read_caption_runs` and `score_captions`.

    # Returns

    `list[dict[str, Any]]`
        `method`, `name`, `seeds`, `metrics`, `layer_speedup` and its like; `full_difference` and `final_difference`:
        CIDEr less that of the same network at full depth, and less that of the network trained without exits with the
        same seed, each with `..._error`, over images the standard error of the mean difference, over seeds the mean of
        these. The row "final, captions of other images" gives each image the caption of the next.
    """
    scored: list[tuple[Mapping[str, Any], list[dict[str, Any]], list[CaptionScores]]] = []
    for run in runs:
        rows = [dict(row) for row in run["rows"]]
        if run["method"] == REFERENCE:
            captions = rows[0]["captions"]
            pairs = zip(captions, captions[1:] + captions[:1])
            moved = [{**one, "caption": other["caption"]} for one, other in pairs]
            rows.append({**rows[0], "name": CONTROL, "captions": moved})
        scored.append((run, rows, score_rows(rows, run["references"], metrics, spice_jars)))
    finals = {run["seed"]: (run, found[0]) for run, _, found in scored if run["method"] == REFERENCE}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run, rows, found in scored:
        final, final_scores = finals.get(run["seed"], (None, None))
        for row, scores in zip(rows, found, strict=True):
            # A network of fewer blocks is faster than the whole one, which its own full depth cannot tell.
            speeds = speeds_of(row, 1.0 if final is None else final["exit_layers"][-1] / run["exit_layers"][-1])
            made = {"metrics": scores.metrics, **speeds, "distinct_captions": row["distinct_captions"]}
            made |= cider_difference(scores, found[0], "full")
            if final_scores is not None and final is not None and final["references"] == run["references"]:
                made |= cider_difference(scores, final_scores, REFERENCE)
            groups.setdefault((run["method"], row["name"]), []).append(made)
    return [
        {"method": method, "name": name, "seeds": len(found), **mean_of(found)}
        for (method, name), found in groups.items()
    ]


def speeds_of(row: Mapping[str, Any], depth: float) -> dict[str, float]:
    """The row's speed-ups against a network `depth` times as deep; what is spent on blocks grows with their number."""
    speeds = {name: float(row[name]) for name in SPEEDS if name in row}
    if depth == 1.0:
        return speeds
    spent = row["gmacs"]
    decoder = sum(value for name, value in spent.items() if name != "images")
    whole = depth * (spent["blocks"] + spent["cross"]) + spent["heads"]
    found = {"layer_speedup": depth * speeds["layer_speedup"]}
    if row["name"] == FULL_DEPTH:
        found["decoder_mac_speedup"] = whole / decoder
        found["mac_speedup"] = (spent["images"] + whole) / (spent["images"] + decoder)
    return found


def mean_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each number's mean over the rows that have it, blocks of numbers alike."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(key for row in rows for key in row):
        values = [row[name] for row in rows if name in row]
        is_block = isinstance(values[0], Mapping)
        found[name] = mean_of(values) if is_block else statistics.fmean(values)
    return found
