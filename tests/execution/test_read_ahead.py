"""Reading in a thread: the same items, the errors where they belong, and no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from beem_plugin.execution.read_ahead import ReadAhead


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "read ahead"]


def test_items_in_their_order() -> None:
    assert list(ReadAhead(iter(range(50)))) == list(range(50))
    items: ReadAhead[int] = ReadAhead([])
    assert list(items) == [] and items.is_ready
    items.close()
    assert not readers()


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("line 3")

    found = []
    with pytest.raises(ValueError, match="line 3"):
        for item in ReadAhead(items()):
            found.append(item)
    assert found == [1, 2]


def test_closing_early_leaves_no_thread() -> None:
    items = ReadAhead(iter(range(1000)))
    assert next(items) == 0
    items.close()
    assert not readers()
