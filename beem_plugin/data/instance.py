"""One sample, as read and as tokenized, and a data set in flat arrays: a tenth of the memory of a list of samples."""

from __future__ import annotations

import pickle
from array import array
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


_BLOCK = 4096


class InstanceTable(Sequence[Instance]):
    """
    Behaves as a list of instances, which are made when they are read. Fields lie in one buffer of bytes with offsets,
    labels as codes (`label_codes` `(rows,)` int32 are positions in `label_values`, the labels that occur, each once),
    and tokens in flat arrays; `lengths` `(rows,)` int64 are the tokens of each row. `select` shares the buffers. The
    instances that a table is made of are consumed one by one; their encodings are ignored, see `set_tokens`.
    """

    def __init__(self, instances: Iterable[Instance] = ()) -> None:
        records, ends, codes = bytearray(), array("q", [0]), array("i")
        numbers: dict[Any, int] = {}
        for instance in instances:
            records += pickle.dumps((instance.fields, instance.id), pickle.HIGHEST_PROTOCOL)
            ends.append(len(records))
            codes.append(numbers.setdefault(instance.label, len(numbers)))
        offsets = np.array(ends, dtype=np.int64)
        self._records = bytes(records)
        self._spans = np.stack([offsets[:-1], offsets[1:]])  # (2, rows): where the record of each row begins and ends
        self.label_values: list[str | float | None] = list(numbers)
        self.label_codes = np.array(codes, dtype=np.int32)
        self._tokens: dict[str, np.ndarray] = {}
        self._starts = np.zeros(len(codes), dtype=np.int64)
        self.lengths = np.zeros(len(codes), dtype=np.int64)

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
        return len(self.label_codes)

    def __iter__(self) -> Iterator[Instance]:
        for first in range(0, len(self), _BLOCK):  # elements of lists are read ten times as fast as those of arrays
            rows = slice(first, first + _BLOCK)
            spans, codes = self._spans[:, rows].T.tolist(), self.label_codes[rows].tolist()
            for (begin, end), start, length, code in zip(
                spans, self._starts[rows].tolist(), self.lengths[rows].tolist(), codes
            ):
                yield self._instance(begin, end, start, length, code)

    @overload
    def __getitem__(self, row: int) -> Instance: ...

    @overload
    def __getitem__(self, row: slice) -> InstanceTable: ...

    def __getitem__(self, row: int | slice) -> Instance | InstanceTable:
        if isinstance(row, slice):
            return self.select(range(*row.indices(len(self))))
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return next(iter(self.select([row])))

    def select(self, rows: Sequence[int] | np.ndarray) -> InstanceTable:
        """The rows at these positions, in that order."""
        chosen = np.asarray(rows, dtype=np.int64)
        table = InstanceTable()
        table._records, table._tokens, table.label_values = self._records, self._tokens, self.label_values
        table._spans, table.label_codes = self._spans[:, chosen], self.label_codes[chosen]
        table._starts, table.lengths = self._starts[chosen], self.lengths[chosen]
        return table

    def compact(self) -> InstanceTable:
        """A copy of the rows, not tokenized yet, that shares no buffer with the table they were selected from."""
        table = InstanceTable()
        ends = (self._spans[1] - self._spans[0]).cumsum()
        table._records = b"".join(self._records[first:last] for first, last in self._spans.T.tolist())
        table._spans = np.stack([ends - (self._spans[1] - self._spans[0]), ends])
        used, codes = np.unique(self.label_codes, return_inverse=True)
        table.label_values, table.label_codes = [self.label_values[code] for code in used], codes.astype(np.int32)
        table._starts, table.lengths = np.zeros_like(self._starts), np.zeros_like(self.lengths)
        return table

    @property
    def labels(self) -> list[str | float | None]:
        """The label of every row."""
        return [self.label_values[code] for code in self.label_codes.tolist()]

    def ragged(self, pad_token_id: int = 0, position: int = 0) -> RaggedBatch:
        """All rows as a batch for an engine, with a copy of their tokens; `index` counts from `position`."""
        lengths = self.lengths
        starts = lengths.cumsum() - lengths
        places = np.arange(int(lengths.sum())) + np.repeat(self._starts - starts, lengths)
        tokens = {name: flat[places] for name, flat in self._tokens.items()}
        return RaggedBatch.from_arrays(tokens, lengths, pad_token_id, position)

    def _instance(self, first: int, last: int, start: int, length: int, code: int) -> Instance:
        fields, identifier = pickle.loads(self._records[first:last])
        encoding = {name: flat[start : start + length].tolist() for name, flat in self._tokens.items()}
        if encoding:
            encoding["attention_mask"] = [1] * length
        return Instance(fields, encoding, self.label_values[code], identifier)


def select(instances: Sequence[Instance], rows: Sequence[int]) -> Sequence[Instance]:
    """The instances at these positions, in that order."""
    return instances.select(rows) if isinstance(instances, InstanceTable) else [instances[row] for row in rows]


def labels_of(instances: Sequence[Instance]) -> list[str | float | None]:
    """The label of every row; of a table without making its instances."""
    return instances.labels if isinstance(instances, InstanceTable) else [instance.label for instance in instances]


def token_counts(instances: Sequence[Instance]) -> np.ndarray:
    """`(rows,)` tokens of every row; of a table without making its instances."""
    return instances.lengths if isinstance(instances, InstanceTable) else np.array([len(row) for row in instances])
