"""The labels of a task and their order, and labels from the values of a column. Tokens belong to the tokenizer."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import DataError, not_allowed
from beem_plugin.common.files import atomic_write
from beem_plugin.data.instance import Instance

logger = logging.getLogger(__name__)

_LABELS_FILE = "labels.txt"
_NAMESPACES_FILE = "non_padded_namespaces.txt"
_MANY_LABELS = 10  # fewer labels are never taken for scores

_NEWLINE = "@@NEWLINE@@"  # AllenNLP's escape: one label a line


class Vocabulary:
    """
    # Parameters

    labels : `Sequence[str]`
        Label names in the order of their indices; none for regression.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = list(labels)
        self._indices = {name: index for index, name in enumerate(self.labels)}
        if len(self._indices) < len(self.labels):
            raise DataError(f"a label name occurs twice: {', '.join(self.labels)}")

    @classmethod
    def from_instances(cls, instances: Iterable[Instance], label_names: Sequence[str] | None = None) -> Vocabulary:
        """`from_labels` of the instances, usually the training data."""
        return cls.from_labels((instance.label for instance in instances), label_names)

    @classmethod
    def from_labels(cls, labels: Iterable[str | float | None], label_names: Sequence[str] | None = None) -> Vocabulary:
        """The labels in the reader's order, or sorted; floats mean regression, `None` is unknown."""
        if label_names is not None:
            return cls(label_names)
        found = Counter(label for label in labels if label is not None)
        if any(isinstance(label, float) for label in found):
            return cls([])
        names = sorted((str(label) for label in found), key=_natural_order)
        if len(names) < 2:
            raise DataError(f"a classifier needs two labels or more; the training data have {names or 'none'}")
        _warn_of_scores(names, found.total())
        return cls(names)

    @classmethod
    def from_files(cls, directory: str | Path) -> Vocabulary:
        """What `save_to_files` wrote."""
        path = Path(directory) / _LABELS_FILE
        if not path.is_file():
            raise DataError(f"{path}: no such file; a vocabulary folder holds {_LABELS_FILE}")
        try:
            lines = [line for line in path.read_bytes().decode("utf-8").split("\n") if line]
        except UnicodeDecodeError:
            raise DataError(f"vocabulary/{path.name}: not UTF-8 text") from None
        if lines and all(line.endswith("\r") for line in lines):  # an editor changed the line ends
            lines = [line[:-1] for line in lines]
        try:
            return cls([line.replace(_NEWLINE, "\n") for line in lines])
        except DataError as error:
            raise DataError(f"vocabulary/{path.name}: {error}") from None

    def save_to_files(self, directory: str | Path) -> None:
        """AllenNLP's layout: `labels.txt`, one name a line, and `non_padded_namespaces.txt`."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        with atomic_write(Path(directory) / _LABELS_FILE) as file:
            file.write("".join(name.replace("\n", _NEWLINE) + "\n" for name in self.labels))
        with atomic_write(Path(directory) / _NAMESPACES_FILE) as file:
            file.write("*labels\n*tags\n")

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def num_labels(self) -> int:
        """1 for regression: the number of outputs a classifier needs."""
        return len(self.labels) or 1

    def label_index(self, name: str) -> int:
        if name not in self._indices:
            raise DataError(not_allowed("label", name, self.labels))
        return self._indices[name]

    def label_name(self, index: int) -> str:
        return self.labels[index]


def _natural_order(name: str) -> tuple[bool, int, str]:
    try:
        return (False, int(name), name)
    except ValueError:
        return (True, 0, name)


def are_scores(names: Collection[str]) -> bool:
    """Whether labels are many numbers, and not all of them whole."""
    values = [_as_number(name) for name in names]
    is_whole = all(value.is_integer() for value in values)
    return len(values) >= _MANY_LABELS and all(map(math.isfinite, values)) and not is_whole


def _warn_of_scores(names: Sequence[str], rows: int) -> None:
    """Many labels for few rows are scores, or the wrong column."""
    if len(names) < _MANY_LABELS:
        return
    are_numbers = all(math.isfinite(_as_number(name)) for name in names)
    if are_scores(names) or (are_numbers and 2 * len(names) > rows):
        logger.warning(
            "%d labels, all of them numbers, in %d rows: dataset_reader.regression true reads them as scores",
            len(names),
            rows,
        )
    elif 2 * len(names) > rows:
        logger.warning("%d labels in %d rows: is dataset_reader.label_field the right column?", len(names), rows)


def _as_number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return math.inf


@dataclass
class LabelRules:
    """What a reader's label column may hold."""

    names: Sequence[str] | None = None  # in order, where a whole number stands for a name; `None`: any name
    regression: bool = False  # finite numbers
    mapping: Mapping[str, str] = field(default_factory=dict)  # name in the file -> label
    skipped: Sequence[str] = ()  # names whose rows are left out
    known: Sequence[str] | None = None  # the labels of a trained model, of a loaded archive: others are refused

    def parse(self, value: Any, what: str) -> str | float | None:
        """The label of a value, `None` for an empty or missing one; `what` names file, line and column in errors."""
        text = self.text(value, what)
        if not text:
            return None
        if self.regression:
            return parse_score(text, what)
        label = parse_label(self.mapping.get(text, text), self.names, what)
        if label is not None and self.known is not None and label not in self.known:
            raise DataError(f"{not_allowed(what, label, self.known)}; dataset_reader.label_map renames labels")
        return label

    def skips(self, value: Any, what: str) -> bool:
        """Whether the row of this label is left out."""
        return bool(self.skipped) and self.text(value, what) in self.skipped

    def text(self, value: Any, what: str) -> str:
        """The value as text, empty for a missing one."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        if isinstance(value, (list, dict)):
            raise DataError(f"{what}: found a {type(value).__name__}, allowed: one label, a name or a number")
        if isinstance(value, str):
            return value.strip()
        # pandas writes whole numbers as 1.0 where the column has missing values.
        is_whole = isinstance(value, float) and not self.regression and value.is_integer()
        return json.dumps(int(value) if is_whole else value)


def given_labels(labels: Iterable[Any]) -> list[Any]:
    """The labels of a call in Python as its own types; a missing one, or a list, is a `DataError`."""
    found = [label.tolist() if hasattr(label, "tolist") else label for label in labels]
    for number, label in enumerate(found):
        if not LabelRules().text(label, f"labels[{number}]"):
            raise DataError(f"labels[{number}]: found {label!r}, allowed: a name or a number")
    return found


def parse_label(name: str, label_names: Sequence[str] | None, what: str) -> str | None:
    """The label's name for `name`, which may be its position in `label_names`; `None` for pandas' `nan`."""
    if name in (label_names or ()):
        return name
    if name.lower() == "nan":  # pandas' missing value; a label only where `label_names` lists it
        return None
    if label_names is None:
        return name
    if re.fullmatch(r"[0-9]{1,9}(\.0)?", name) and int(float(name)) < len(label_names):
        return label_names[int(float(name))]
    raise DataError(not_allowed(what, name, label_names))


def parse_score(text: str, what: str) -> float | None:
    """A finite number; `None` for pandas' `nan`."""
    try:
        score = float(text)
    except (ValueError, OverflowError):
        score = math.inf
    if math.isnan(score):
        return None
    if math.isinf(score):
        raise DataError(f"{what}: found {text[:40]!r}, a number is expected")
    # The hub stores STS-B in float32: 3.799999952 must equal the 3.8 of the files.
    return round(score, 5)
