"""Tables of captions under exit policies, as Markdown and as flat rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from beem_plugin.rendering.tables import Column, Table, text
from beem_plugin.tasks.caption_data import WORD_CLASSES

METRIC_NAMES = {
    "bleu_1": "BLEU-1",
    "bleu_4": "BLEU-4",
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "spice": "SPICE",
}
SPEEDS = {
    "layer_speedup": "layers",
    "decoder_mac_speedup": "decoder MACs",
    "mac_speedup": "all MACs",
    "decoder_measured_speedup": "decoder time",
    "measured_speedup": "all time",
}


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Metrics times 100 and speed-ups; then the average exit by class of word, with the tokens of each class."""
    metrics = [name for name in METRIC_NAMES if any(name in row["metrics"] for row in rows)]
    speeds = [name for name in SPEEDS if any(name in row for row in rows)]
    head = ["policy", *(METRIC_NAMES[name] for name in metrics), "CIDEr - full", "same captions"]
    lines = table_lines(
        [*head, *(SPEEDS[name] for name in speeds)],
        [
            [
                row["name"],
                *(hundredths(row["metrics"].get(name)) for name in metrics),
                difference(row),
                f"{100 * row['same_as_full_depth']:.0f} %",
                *(times(row.get(name)) for name in speeds),
            ]
            for row in rows
        ],
    )
    lines += ["", "Average exit by class of word (tokens):", ""]
    classes = [(row["name"], row["by_word_class"]) for row in rows]
    return "\n".join(
        [
            *lines,
            *table_lines(
                ["policy", *WORD_CLASSES],
                [[name, *(depth(found.get(kind)) for kind in WORD_CLASSES)] for name, found in classes],
            ),
            "",
        ]
    )


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown."""
    columns = [*text(head[0]), *(Column(name) for name in head[1:])]
    return Table(columns, list(rows)).to_markdown().splitlines()


def hundredths(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def difference(row: Mapping[str, Any]) -> str:
    if "cider_difference" not in row:
        return "-"
    return f"{100 * row['cider_difference']:+.1f} ± {100 * row['cider_difference_error']:.1f}"


def depth(found: Mapping[str, Any] | None) -> str:
    return "-" if found is None else f"{found['average_exit']:.2f} ({found['tokens']})"


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """One line of a CSV file: numbers alone, those of a block as `block.name`."""
    line: dict[str, Any] = {"name": row["name"], "skipped_blocks": row["skipped_blocks"]}
    line.update({f"metrics.{name}": value for name, value in row["metrics"].items()})
    line.update({name: value for name, value in row.items() if isinstance(value, int | float)})
    line.update({f"average_exit.{name}": found["average_exit"] for name, found in row["by_word_class"].items()})
    line["exit_histogram"] = " ".join(map(str, row["exit_histogram"]))
    return line
