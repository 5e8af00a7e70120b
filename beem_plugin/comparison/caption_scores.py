"""The scores of captions under exit policies, and their tables: of one network, and of several methods' networks."""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.caption_metrics import DEFAULT_METRICS, CaptionScores, score_captions
from beem_plugin.common.errors import DataError
from beem_plugin.common.strict_json import read_json
from beem_plugin.decoding.speed import WORD_CLASSES
from beem_plugin.evaluation.statistics import mean_and_error
from beem_plugin.rendering.tables import Column, Estimate, Table

METRIC_NAMES = {
    "bleu_1": "BLEU-1",
    "bleu_4": "BLEU-4",
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "spice": "SPICE",
}
DIFFERENCES = {"cider_difference": "full", "full_difference": "full", "final_difference": "final"}
SPEEDS = {
    "layer_speedup": "layers",
    "decoder_mac_speedup": "decoder MACs",
    "mac_speedup": "all MACs",
    "decoder_measured_speedup": "decoder time",
    "measured_speedup": "all time",
}

FULL_DEPTH = "full depth"
FILE_NAME = "captions.json"
KEYS = ("method", "seed", "exit_layers", "rows", "references")
"""What is used of the file: `rows` and `references` are those of `decoded_rows`."""
REFERENCE = "final"
"""The method whose full depth the others are compared with: the network that was trained without exits."""
CONTROL = "final, captions of other images"


def score_rows(
    rows: Sequence[Mapping[str, Any]],
    references: Sequence[list[str]],
    metrics: Sequence[str],
    spice_jars: str | None = None,
) -> list[CaptionScores]:
    """The scores of each row's captions; the same captions are scored once."""
    by_image: dict[Hashable, list[str]] = dict(enumerate(references))
    scored: dict[tuple[str, ...], CaptionScores] = {}
    found = []
    for row in rows:
        texts = tuple(caption["caption"] for caption in row["captions"])
        if texts not in scored:
            scored[texts] = score_captions(dict(enumerate(texts)), by_image, metrics, spice_jars)
        found.append(scored[texts])
    return found


def cider_difference(found: CaptionScores, first: CaptionScores, name: str = "cider") -> dict[str, float]:
    """`NAME_difference`, the mean difference of CIDEr over images, and its standard error."""
    pairs = zip(found.per_image.get("cider", []), first.per_image.get("cider", []))
    differences = [one - other for one, other in pairs]
    if len(differences) < 2:
        return {}
    return dict(zip((f"{name}_difference", f"{name}_difference_error"), mean_and_error(differences)))


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a CSV file: text and numbers, those of a block as `block.name`."""
    line = {name: value for name, value in row.items() if isinstance(value, str | int | float)}
    line |= {f"metrics.{name}": value for name, value in row["metrics"].items()}
    line |= {f"average_exit.{name}": found["average_exit"] for name, found in row.get("by_word_class", {}).items()}
    if "exit_histogram" in row:
        line["exit_histogram"] = " ".join(map(str, row["exit_histogram"]))
    return line


def scores_table(rows: Sequence[Mapping[str, Any]], **heads: str) -> Table:
    """
    Metrics times 100, differences of CIDEr with error, speed-ups; first the columns `heads`. A column is added here.
    """
    columns = {name: Column(head, "text") for name, head in heads.items()}
    columns |= {f"metrics.{name}": Column(head, digits=1, factor=100) for name, head in METRIC_NAMES.items()}
    columns |= {
        name: Column(f"CIDEr - {against}", digits=1, factor=100, sign=True) for name, against in DIFFERENCES.items()
    }
    columns["same_as_full_depth"] = Column("same captions", digits=0, unit=" %", factor=100)
    columns["distinct_captions"] = Column("distinct", digits=0)
    columns |= {name: Column(head, unit="x") for name, head in SPEEDS.items()}
    records = [flat(row) for row in rows]
    for record in records:
        for name in DIFFERENCES.keys() & record.keys():
            record[name] = Estimate(record[name], record[f"{name}_error"])
    return Table.of_records(records, columns)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of scores and the average exit by class of word, with the tokens of each class."""
    columns = [Column("policy", "text"), *map(Column, WORD_CLASSES)]
    depths = Table(columns)
    for row in rows:
        found = [row["by_word_class"].get(kind) for kind in WORD_CLASSES]
        shown = [None if one is None else f"{one['average_exit']:.2f} ({one['tokens']})" for one in found]
        depths.rows.append([row["name"], *shown])
    tables = scores_table(rows, name="policy").to_markdown(), depths.to_markdown()
    return "\nAverage exit by class of word (tokens):\n\n".join(tables)


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
    A row for each method and rule, means over seeds: `method`, `name`, `seeds`, `metrics` (see `score_captions`),
    `layer_speedup` and its like; `full_difference` and `final_difference`: CIDEr less that of the same network at full
    depth, and less that of the network trained without exits with the same seed, each with `..._error`, over images the
    standard error of the mean difference, over seeds the mean of these. The row "final, captions of other images" gives
    each image the caption of the next.
    """
    finals: dict[Any, tuple[Mapping[str, Any], CaptionScores]] = {}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: bool(run["method"] != REFERENCE)):
        rows = [dict(row) for row in run["rows"]]
        if run["method"] == REFERENCE:
            captions = rows[0]["captions"]
            moved = [{**one, "caption": other["caption"]} for one, other in zip(captions, captions[1:] + captions[:1])]
            rows.append({**rows[0], "name": CONTROL, "captions": moved})
        found = score_rows(rows, run["references"], metrics, spice_jars)
        if run["method"] == REFERENCE:
            finals[run["seed"]] = run, found[0]
        final, final_scores = finals.get(run["seed"], (run, None))
        for row, scores in zip(rows, found, strict=True):
            # A network of fewer blocks is faster than the whole one, which its own full depth cannot tell.
            speeds = speeds_of(row, final["exit_layers"][-1] / run["exit_layers"][-1])
            made = {"metrics": scores.metrics, **speeds, "distinct_captions": row["distinct_captions"]}
            made |= cider_difference(scores, found[0], "full")
            if final_scores is not None and final["references"] == run["references"]:
                made |= cider_difference(scores, final_scores, REFERENCE)
            groups.setdefault((run["method"], row["name"]), []).append(made)
    return [
        {"method": method, "name": name, "seeds": len(made), **mean_of(made)} for (method, name), made in groups.items()
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
