"""`allennlp new-config`: a config for a table of labelled texts, from its columns, labels and lengths."""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from beem_plugin.backbones.loading import make_config, read_config
from beem_plugin.common.errors import ConfigurationError, DataError, check_choice
from beem_plugin.common.files import atomic_write
from beem_plugin.common.outputs import check_outputs, check_writable
from beem_plugin.data.hub import resolve_model_name
from beem_plugin.data.table_file import read_table
from beem_plugin.data.vocabulary import LabelRules, are_scores, parse_score
from beem_plugin.rendering.pages import render_page

ROWS = 100_000
"""Rows that are looked at."""
LABEL_NAMES = ("label", "labels", "category", "class", "target", "sentiment", "intent", "topic", "gold_label", "y")
PAIRS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "answer"), ("text1", "text2"))
LENGTHS = (32, 64, 128, 256, 512)
TOKENS_PER_WORD = 1.4
HELD_OUT = 10
"""One in so many rows is held out by the config that is written."""
FEW = 200
SHALLOW = 6
"""Encoders of fewer layers are not cut."""
UNBALANCED = 3
"""From this ratio of the largest to the smallest class on, `macro_f1` is reported."""


@dataclass
class Columns:
    """What was found in a table: text columns, label column, rows of each label or score, and words of each row."""

    text_fields: list[str]
    label_field: str
    labels: Counter[str]
    words: list[int]
    has_scores: bool = False


def new_config_from_args(args: argparse.Namespace) -> None:
    """Runs the command; `args` as `commands/new_config.py` parses them."""
    check_outputs({"--output": args.output}, [args.data])
    check_writable({"--output": args.output})
    if Path(args.output).exists() and not args.force:
        raise ConfigurationError(f"--output: {args.output} exists, allowed: a new file, or --force")
    found = look_at(args.data, args.text, args.label)
    config = config_for(found, args.data, args.encoder, Path(args.output).name)
    with atomic_write(args.output) as file:
        file.write(config)
    if (held_out := sum(found.labels.values()) // HELD_OUT) < FEW:
        print(
            f"warning: about {held_out} rows will be held out to choose thresholds and the epoch; with fewer than "
            f"{FEW} both are uncertain",
            file=sys.stderr,
        )
    print(f"{args.data}: {summary_of(found)}\nwrote {args.output}; next: allennlp train {quote(args.output)}")


def look_at(path: str, text_fields: Sequence[str] | None = None, label_field: str | None = None) -> Columns:
    """Finds the columns of a table that are not given, and counts."""
    rows = list(islice(read_table(path), ROWS))
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    for flag, given in (("--label", [label_field] if label_field else []), ("--text", text_fields or [])):
        for name in given:
            check_choice(flag, name, names)
    values = {name: [row.values.get(name) for row in rows] for name in names}
    label = label_field or guessed_label({name: values[name] for name in names if name not in (text_fields or ())})
    texts = list(text_fields or guessed_texts(values, label))
    if len(texts) > 2 or len(set(texts)) < len(texts):
        raise ConfigurationError(f"--text: found {', '.join(texts)}, allowed: one or two columns of {', '.join(names)}")
    if label in texts:
        raise ConfigurationError(f"--text: found the label's column {label!r}, allowed: another of {', '.join(names)}")
    labels: Counter[str] = Counter()
    for row in rows:
        name = LabelRules().text(row.values.get(label), f"{row.place}: {label}")
        if not name:
            raise DataError(f"{row.place}: {label}: no label, allowed: one in every row")
        labels[name] += 1
    has_scores = are_scores(labels)
    if len(labels) < 2 or (2 * len(labels) > len(rows) and not has_scores):
        what = "values, most of them once: no classes" if len(labels) > 1 else "label"
        raise ConfigurationError(
            f"--label: found {len(labels)} {what} in {label!r}, allowed: a column of classes, or of scores with "
            f"fractions, one of {', '.join(names)}"
        )
    words = [sum(len(str(row.values.get(name) or "").split()) for name in texts) for row in rows]
    return Columns(texts, label, labels, words, has_scores)


def guessed_label(values: Mapping[str, list[Any]]) -> str:
    """The column with a usual name, or the last one with few, repeated values, or of scores."""
    for name in LABEL_NAMES:
        for column in values:
            if column.strip().lower() == name:
                return column
    found = {name: {str(value) for value in column} for name, column in values.items()}
    rows = max((len(column) for column in values.values()), default=0)
    few = [name for name, labels in found.items() if 2 <= len(labels) <= max(2, min(200, rows // 5))]
    few = few or [name for name, labels in found.items() if are_scores(labels)]
    if not few:
        raise ConfigurationError(
            f"--label: not given, and no column looks like classes; found: {', '.join(values) or 'none'}"
        )
    *others, label = few
    if others:
        print(
            f"warning: --label: {label!r} is taken; {', '.join(map(repr, others))} could be classes, too",
            file=sys.stderr,
        )
    return label


def guessed_texts(values: Mapping[str, list[Any]], label: str) -> list[str]:
    """A pair of columns with usual names, or the column with the longest texts."""
    lower = {name.strip().lower(): name for name in values}
    for first, second in PAIRS:
        if first in lower and second in lower:
            return [lower[first], lower[second]]
    lengths = {
        name: sum(len(value) for value in column if isinstance(value, str) and not is_number(value))
        for name, column in values.items()
        if name != label
    }
    longest = max(lengths, key=lengths.__getitem__, default=None)
    if longest is None or not lengths[longest]:
        raise ConfigurationError(f"--text: not given, and no column holds texts; found: {', '.join(values)}")
    return [longest]


def is_number(text: str) -> bool:
    try:
        parse_score(text, "")
    except DataError:
        return False
    return True


def config_for(found: Columns, data: str, encoder: str, name: str, shape: tuple[int, int] | None = None) -> str:
    """The config's text, for an encoder by hub name, folder or package; `shape` are its layers and width, if known."""
    if shape is None:
        config = make_config(read_config(resolve_model_name(encoder, "encoder"), "encoder"), "encoder")
        shape = config.num_hidden_layers, config.hidden_size
    depth, width = shape
    rows, sizes = sum(found.labels.values()), found.labels.values()
    tokens = math.ceil(TOKENS_PER_WORD * float(np.quantile(found.words, 0.95))) + 3
    layers = depth if depth < SHALLOW else 2 * depth // 3
    exits = [max(layers * part // 4, 1) for part in (2, 3, 4)]
    page = render_page(
        "my_data.jinja",
        summary=summary_of(found),
        name=quote(name),
        data=quoted(data),
        encoder=quoted(encoder),
        text_fields=[quoted(field) for field in found.text_fields],
        label_field=quoted(found.label_field),
        has_scores=found.has_scores,
        metric="macro_f1" if max(sizes) > UNBALANCED * min(sizes) else "accuracy",
        max_length=next((length for length in LENGTHS if length >= tokens), LENGTHS[-1]),
        lengths=f"95 % of the texts have up to {int(np.quantile(found.words, 0.95))} words",
        batch_size=16 if rows < 1000 else 32,
        epochs=10 if rows < 3000 else 5 if rows < 30_000 else 3,
        depth=depth,
        layers=layers,
        speed=f"{1.5 * depth / layers:.3g}",
        twice=f"{math.ceil(200 * layers / depth) / 100:.3g}",
        exits=sorted(set(exits)),
        width=width // 2,
    )
    return page.strip() + "\n"


def summary_of(found: Columns) -> str:
    """Rows, columns and classes or scores in one line."""
    rows = sum(found.labels.values())
    what = f"{rows} rows; text: {', '.join(found.text_fields)}; {found.label_field}: "
    if found.has_scores:
        low, *_, high = sorted(found.labels, key=float)
        return f"{what}scores from {low} to {high}"
    shown = ", ".join(f"{quoted(name)} {count}" for name, count in found.labels.most_common(5))
    more = f" and {len(found.labels) - 5} more" if len(found.labels) > 5 else ""
    return f"{what}{shown}{more}"


def quoted(text: str) -> str:
    """A string of jsonnet."""
    return f"'{text}'" if text.isprintable() and "'" not in text and "\\" not in text else json.dumps(text)
