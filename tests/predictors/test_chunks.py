from __future__ import annotations

from collections.abc import Iterator

import pytest

from beem_plugin.common.errors import DataError
from beem_plugin.predictors.predictor import BATCHES_PER_CHUNK, UntilError, chunks


def failing(good: int) -> Iterator[int]:
    yield from range(good)
    raise DataError("line 7")


def test_chunks_begin_small_and_grow() -> None:
    sizes = [len(part) for part in chunks(range(1000), 2)]
    assert sizes[:4] == [2, 4, 8, 16] and max(sizes) == 2 * BATCHES_PER_CHUNK and sum(sizes) == 1000


def test_what_came_before_an_error_is_a_chunk() -> None:
    found: list[list[int]] = []
    with pytest.raises(DataError, match="line 7"):
        for part in chunks(failing(5), 2):
            found.append(part)
    assert found == [[0, 1], [2, 3, 4]]


def test_an_error_of_the_data_is_raised_when_it_is_asked_for() -> None:
    items = UntilError(failing(3))
    assert list(items) == [0, 1, 2]
    with pytest.raises(DataError, match="line 7"):
        items.raise_error()
    other = UntilError(iter([1]))
    assert list(other) == [1]
    other.raise_error()
