from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from beem_plugin.common.errors import DataError
from beem_plugin.data import Instance, Vocabulary, collate
from beem_plugin.data.collate import label_tensor, ragged, ragged_parts
from beem_plugin.data.instance import InstanceTable, labels_of, select, token_counts
from beem_plugin.data.ragged_batch import RaggedBatch

VOCAB = Vocabulary(["no", "yes"])
FIELDS: list[dict[str, Any]] = [
    {"id": 7, "text": "a film"},
    {"text": "half \ud83d of a pair", "note": None, "big": 10**30},
    {"text": "", "nested": {"b": [1, 2.5, True]}},
]


def make(labels: Sequence[Any] = ("yes", None, "no")) -> tuple[list[Instance], InstanceTable]:
    """The same three instances as a list and as a table."""
    encodings = [
        {"input_ids": [5] * length, "token_type_ids": [1] * length, "attention_mask": [1] * length}
        for length in (2, 4, 1)
    ]
    rows = [
        Instance(fields, encoding, label, identifier)
        for fields, encoding, label, identifier in zip(FIELDS, encodings, labels, (7, "x", None), strict=True)
    ]
    table = InstanceTable(iter(rows))
    columns = {name: [one[name] for one in encodings] for name in ("input_ids", "token_type_ids")}
    parts = ({name: values[rows] for name, values in columns.items()} for rows in (slice(0, 2), slice(2, 3)))
    table.set_tokens(map(RaggedBatch.from_columns, parts))
    return rows, table


def test_a_table_is_the_list_it_was_made_of() -> None:
    rows, table = make()
    assert list(table) == rows and [table[0], table[-1]] == [rows[0], rows[-1]] and len(table) == 3
    assert list(table[1:]) == rows[1:] and table.labels == ["yes", None, "no"]
    assert list(select(table, [2, 0])) == select(rows, [2, 0]) == [rows[2], rows[0]]
    assert list(pickle.loads(pickle.dumps(table[1:]))) == rows[1:], "workers that are spawned get a copy"
    with pytest.raises(IndexError):
        table[3]
    assert not InstanceTable() and list(InstanceTable()) == []


def test_a_selection_keeps_its_own_rows_only() -> None:
    table = InstanceTable([Instance({"text": str(number)}, {}, "abc"[number % 3], number) for number in range(300)])
    chosen = table.select([5, 2, 8])
    assert list(chosen) == [table[row] for row in (5, 2, 8)] and chosen.labels == ["c"] * 3
    assert len(pickle.dumps(chosen)) < len(pickle.dumps(table)) / 5
    assert list(table.select([])) == []


def test_labels_and_token_counts_are_those_of_the_list() -> None:
    rows, table = make()
    assert labels_of(table) == labels_of(rows) == ["yes", None, "no"]
    assert token_counts(table).tolist() == token_counts(rows).tolist() == [2, 4, 1]
    assert Vocabulary.from_labels(labels_of(table)).labels == ["no", "yes"]


@pytest.mark.parametrize("rows_chosen", [[0, 1, 2], [2, 0]])
def test_batches_from_arrays_equal_batches_from_lists(rows_chosen: list[int]) -> None:
    rows, table = make()
    found = collate(table.select(rows_chosen), VOCAB, 9, rows_chosen)
    expected = collate([rows[row] for row in rows_chosen], VOCAB, 9, rows_chosen)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value) and found[name].dtype == value.dtype, name


def test_parts_for_an_engine_hold_all_rows_in_order() -> None:
    rows, table = make()
    for instances in (rows, table):
        parts = list(ragged_parts(instances, 9, size=2))
        assert [part.index.tolist() for part in parts] == [[0, 1], [2]]
        assert [part.lengths.tolist() for part in parts] == [[2, 4], [1]]
        assert parts[0].padded()["input_ids"].tolist() == [[5, 5, 9, 9], [5, 5, 5, 5]]
    assert ragged(table, 9, position=4).index.tolist() == [4, 5, 6]


def test_labels_are_indices_values_or_unknown() -> None:
    assert label_tensor(make()[1], VOCAB).tolist() == [1, -1, 0]
    scores = label_tensor(make([2.5, None, 1.0])[1], Vocabulary([]))
    assert scores.dtype == torch.float32 and scores[0] == 2.5 and bool(scores[1].isnan())
    table = make(["yes", "maybe", "no"])[1]
    with pytest.raises(DataError, match="maybe"):
        label_tensor(table, VOCAB)
    assert label_tensor(table.select([0, 2]), VOCAB).tolist() == [1, 0], "of the chosen rows alone"
