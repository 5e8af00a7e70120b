"""`scripts/caption_memory.py` on a decoder of a few words."""

from __future__ import annotations

import json
import multiprocessing
import sys
from importlib import import_module
from typing import Any

import pytest

from tests.forked import CONTEXT
from tests.tiny_project import ROOT

SMALL = ["--layers", "2", "--hidden", "64", "--words", "30", "--batch", "2", "--tokens", "4", "--device", "cpu"]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls the script with arguments: returns its status, and what it printed."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: CONTEXT)

    def call(*more: str) -> tuple[int, list[Any]]:
        monkeypatch.setattr(sys, "argv", ["caption_memory.py", *SMALL, *more])
        status = import_module("caption_memory").main()
        return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return call


def test_every_case_is_measured(memory: Any) -> None:
    status, found = memory()
    assert status == 0
    assert [line["exits"] for line in found] == [1, 2, 2] and all(line["seconds_a_step"] > 0 for line in found)


def test_a_case_that_fails_says_why(memory: Any) -> None:
    status, found = memory("--chunk-elements", "0", "--cases", "plain")
    assert status == 1
    assert [line["failed"] for line in found] == ["model.chunk_elements: found 0, allowed: 1 or more"]
