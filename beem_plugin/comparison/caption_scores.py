"""The scores of captions under exit policies, and their tables."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from beem_plugin.common.caption_metrics import CaptionScores, score_captions
from beem_plugin.decoding.word_depth import WORD_CLASSES
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
    mean, error = mean_and_error(differences)
    return {f"{name}_difference": mean, f"{name}_difference_error": error}


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
    Metrics times 100, differences of CIDEr with their standard error, and speed-ups. `heads` are the first columns'. A
    column is added here.
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
