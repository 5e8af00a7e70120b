"""The labels of a task and their order. Tokens belong to the tokenizer."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from beem_plugin.common.errors import DataError, not_allowed
from beem_plugin.common.files import atomic_write
from beem_plugin.data.instance import Instance

logger = logging.getLogger(__name__)

_LABELS_FILE = "labels.txt"
_NAMESPACES_FILE = "non_padded_namespaces.txt"
_MANY_LABELS = 10
"""Fewer labels are never taken for scores."""

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
        """
        The labels that occur, in the order of `label_names`, where the reader fixes it, or sorted, whole numbers by
        value. Float labels mean regression; `None` is an unknown label.
        """
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


def _warn_of_scores(names: Sequence[str], rows: int) -> None:
    """Many labels for few rows are scores, or the wrong column."""
    if len(names) < _MANY_LABELS:
        return
    values = [_as_number(name) for name in names]
    has_fractions = not all(value.is_integer() for value in values)
    if all(map(math.isfinite, values)) and (has_fractions or 2 * len(names) > rows):
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
