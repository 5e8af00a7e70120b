"""Which rows captured graphs compute, and what tells of their samples."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from beem_plugin.execution.batch_rows import FINE_TOKENS, LEAST_ROWS, Rows, length_for, rows_for
from beem_plugin.execution.batch_sheet import ALIGNED, NOT_THERE, BatchSheet, fields_of
from beem_plugin.execution.batch_staging import BatchStaging
from tests.execution.test_captured import OnTheSpot

CPU = torch.device("cpu")


def test_numbers_of_rows() -> None:
    assert [rows_for(count, 16) for count in (1, 2, 3, 4, 5, 8, 9, 33, 64)] == [1, 2, 4, 4, 8, 8, 16, 64, 64]
    assert [rows_for(count, 64) for count in (24, 33, 48, 49, 96, 97)] == [32, 48, 48, 64, 96, 128]
    for length in (1, 16, 512):
        found = [rows_for(count, length) for count in range(1, 300)]
        assert found == sorted(found) and all(rows >= count for count, rows in enumerate(found, start=1))
        assert all(rows_for(rows, length) == rows for rows in found)
        assert all(rows & (rows - 1) == 0 or rows * length > FINE_TOKENS for rows in found)


def test_lengths() -> None:
    assert [length_for(tokens, None) for tokens in (1, 16, 17, 500)] == [16, 16, 32, 512]
    assert [length_for(tokens, 38) for tokens in (1, 33, 38)] == [16, 38, 38]


@pytest.mark.parametrize("min_leaving", [0.0, 0.4])
def test_those_who_stay_are_computed_and_nobody_is_computed_twice(min_leaving: float) -> None:
    rng = random.Random(3)
    for samples in (1, 2, 3, 7, 8, 21, 40):
        for length in (16, 128):
            rows = Rows(samples, length, min_leaving)
            first = len(rows)
            # What the device says of rows that hold no sample, and of the last one, must not matter.
            left = np.array([0] * samples + [rng.choice([0, 1]) for _ in range(first + 1 - samples)], dtype=np.uint8)
            while True:
                before, running = len(rows), rows.running
                staying = set(np.flatnonzero(left[:samples] == 0).tolist())
                assert rows.take_out(left) == bool(staying)
                if not staying:
                    break
                assert staying <= set(rows.slots.tolist()) <= set(range(first))
                assert len(set(rows.slots.tolist())) == len(rows) <= before
                fewer = max(rows_for(len(staying), length), LEAST_ROWS)
                worth = running - len(staying) >= min_leaving * running
                assert len(rows) == (fewer if fewer < before and worth else before)
                assert len(rows) == rows_for(len(rows), length), "a number of rows that others have too"
                for leaving in rng.sample(sorted(staying), rng.randint(0, len(staying))):
                    left[leaving] = 1


def test_a_sheet_is_told_in_one_copy_and_not_believed_before() -> None:
    sheet = BatchSheet(6, 3, CPU, OnTheSpot())
    assert all(field.data_ptr() % ALIGNED == sheet.there.data_ptr() % ALIGNED for field in sheet.state.values())
    sheet.state["label"][2] = 1.0
    sheet.reset()
    assert sheet.state["label"].tolist() == [-1.0] * 6
    sheet.state["exits"][:] = torch.arange(6) + 1
    sheet.state["output"][:] = torch.arange(18).view(6, 3).double()
    sheet.state["score"][:] = 0.5
    sheet.state["left"][:5] = 1
    sheet.expect()
    assert (sheet.seen["left"] == NOT_THERE).all() and np.isnan(sheet.seen["output"]).all()
    assert (sheet.seen["exits"] < 0).all() and np.isnan(sheet.seen["score"]).all()
    sheet.tell()
    assert sheet.left().tolist() == [1, 1, 1, 1, 1, 0]
    found = sheet.answers(5, has_score=True)
    sheet.expect()
    assert found.exits.tolist() == [1, 2, 3, 4, 5] and found.scores is not None and found.scores.tolist() == [0.5] * 5
    assert found.predictions.tolist() == [2] * 5 and found.log_probabilities[4].tolist() == [12.0, 13.0, 14.0]


def test_fields_do_not_overlap() -> None:
    memory = torch.zeros(4096, dtype=torch.uint8)
    fields = fields_of(memory, 5, 3)
    for number, field in enumerate(fields.values(), start=1):
        field.fill_(number)
    assert [set(field.flatten().tolist()) for field in fields.values()] == [{1}, {2}, {3}, {4}]


def test_staged_batches() -> None:
    staging = BatchStaging(("input_ids", "token_type_ids"), 8, 6, 9, CPU, OnTheSpot())
    batch = {"input_ids": torch.tensor([[3, 4, 5], [6, 9, 9]]), "token_type_ids": torch.tensor([[0, 1, 1], [1, 0, 0]])}
    staging.make_up(8)
    staging.load(batch, np.array([3, 1]), 4)
    inputs, lengths = staging.fetch(4)
    assert inputs["input_ids"].tolist() == [[3, 4, 5, 9, 9, 9], [6, 9, 9, 9, 9, 9], [9] * 6, [9] * 6]
    assert inputs["token_type_ids"].tolist() == [[0, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0] * 6, [0] * 6]
    assert lengths.tolist() == [3, 1, 1, 1]
    assert all(value.is_contiguous() for value in (*inputs.values(), lengths))
