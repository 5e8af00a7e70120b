"""One sample, as read and as tokenized, and a data set in flat arrays: a tenth of the memory of a list of samples."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from beem_plugin.data.ragged_batch import RaggedBatch


@dataclass(slots=True)
class Instance:
    """
    # Parameters

    fields : `dict[str, Any]`
        The raw input fields as read, JSON-able, with `id` if there is one; never the label.
    encoding : `dict[str, list[int]]`, optional (default = `{}`)
        `input_ids`, `attention_mask`, and `token_type_ids` if the tokenizer makes them, not padded.
    label : `str | float | tuple[str, ...] | None`, optional (default = `None`)
        The label's name; a float for regression; a tag for each word; `None` where it is unknown.
    id : `str | int | None`, optional (default = `None`)
    """

    fields: dict[str, Any]
    encoding: dict[str, list[int]] = field(default_factory=dict)
    label: Any = None
    id: str | int | None = None

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.encoding.get("input_ids", ()))


class InstanceTable(Sequence[Instance]):
    """
    Behaves as a list of instances, which are made when they are read: fields are pickled, and tokens lie in flat
    arrays, in which `lengths` `(rows,)` int64 are the tokens of each row. Tables that `select` returns share them.
    Encodings of the given instances are ignored, see `set_tokens`.
    """

    def __init__(self, instances: Iterable[Instance] = ()) -> None:
        records: list[bytes] = []
        labels: list[Any] = []
        shared: dict[Any, Any] = {}  # equal labels are one object
        for instance in instances:
            records.append(pickle.dumps((instance.fields, instance.id), pickle.HIGHEST_PROTOCOL))
            labels.append(shared.setdefault(instance.label, instance.label))
        self._records = np.fromiter(records, dtype=object, count=len(records))
        self._labels = np.fromiter(labels, dtype=object, count=len(labels))
        self._tokens: dict[str, np.ndarray] = {}
        self._starts = self.lengths = np.zeros(len(records), dtype=np.int64)

    def set_tokens(self, encodings: Iterable[RaggedBatch]) -> None:
        """Takes the tokens of all rows in order, in parts as a tokenizer returns them."""
        lengths, flat = [], defaultdict(list)
        for part in encodings:
            lengths.append(part.lengths.numpy())
            for name, values in part.tokens.items():
                numbers = values.numpy()  # in the smallest type that holds them
                flat[name].append(numbers.astype(np.min_scalar_type(numbers.max(initial=0))))
        self.lengths, self._tokens = np.concatenate(lengths), {name: np.concatenate(one) for name, one in flat.items()}
        self._starts = self.lengths.cumsum() - self.lengths

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Instance]:
        for record, label, start, length in zip(self._records, self._labels, self._starts, self.lengths):
            fields, identifier = pickle.loads(record)
            encoding = {name: flat[start : start + length].tolist() for name, flat in self._tokens.items()}
            if encoding:
                encoding["attention_mask"] = [1] * int(length)
            yield Instance(fields, encoding, label, identifier)

    @overload
    def __getitem__(self, row: int) -> Instance: ...

    @overload
    def __getitem__(self, row: slice) -> InstanceTable: ...

    def __getitem__(self, row: int | slice) -> Instance | InstanceTable:
        if isinstance(row, slice):
            return self.select(range(*row.indices(len(self))))
        return next(iter(self.select([row])))

    def select(self, rows: Sequence[int] | np.ndarray) -> InstanceTable:
        """The rows at these positions, in that order."""
        chosen = np.asarray(rows, dtype=np.int64)
        table = InstanceTable()
        table._records, table._labels, table._tokens = self._records[chosen], self._labels[chosen], self._tokens
        table._starts, table.lengths = self._starts[chosen], self.lengths[chosen]
        return table

    @property
    def labels(self) -> list[Any]:
        """The label of every row."""
        return list(self._labels)

    def ragged(self, pad_token_id: int = 0, position: int = 0) -> RaggedBatch:
        """All rows as a batch for an engine, with a copy of their tokens; `index` counts from `position`."""
        lengths = self.lengths
        starts = lengths.cumsum() - lengths
        places = np.arange(int(lengths.sum())) + np.repeat(self._starts - starts, lengths)
        tokens = {name: flat[places] for name, flat in self._tokens.items()}
        return RaggedBatch.from_arrays(tokens, lengths, pad_token_id, position)


def select(instances: Sequence[Instance], rows: Sequence[int]) -> Sequence[Instance]:
    """The instances at these positions, in that order."""
    return instances.select(rows) if isinstance(instances, InstanceTable) else [instances[row] for row in rows]


def labels_of(instances: Sequence[Instance]) -> list[Any]:
    """The label of every row; of a table without making its instances."""
    return instances.labels if isinstance(instances, InstanceTable) else [instance.label for instance in instances]


def token_counts(instances: Sequence[Instance]) -> np.ndarray:
    """`(rows,)` tokens of every row; of a table without making its instances."""
    return instances.lengths if isinstance(instances, InstanceTable) else np.array([len(row) for row in instances])
