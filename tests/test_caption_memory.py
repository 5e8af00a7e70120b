"""`scripts/caption_memory.py` on a decoder of a few words."""

from __future__ import annotations

import json
import multiprocessing
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.forked import FORK, process
from tests.tiny_project import ROOT

SMALL = ["--layers", "2", "--hidden", "64", "--words", "30", "--batch", "2", "--tokens", "4", "--device", "cpu"]


def measure(*arguments: str) -> int:
    """Run in a process, from which that of each case is forked."""
    sys.path.insert(0, str(ROOT / "scripts"))
    sys.argv = ["caption_memory.py", *SMALL, *arguments]
    with patch.object(multiprocessing, "get_context", lambda method: FORK):
        return import_module("caption_memory").main()


def measured(folder: Path, *arguments: str) -> tuple[int, list[Any]]:
    """The script's status, and what it printed."""
    result = process(measure, *arguments, folder=folder)
    return result.returncode, [json.loads(line) for line in result.stdout.splitlines()]


def test_every_case_is_measured(tmp_path: Path) -> None:
    status, found = measured(tmp_path)
    assert status == 0
    assert [line["exits"] for line in found] == [1, 2, 2] and all(line["seconds_a_step"] > 0 for line in found)


def test_a_case_that_fails_says_why(tmp_path: Path) -> None:
    status, found = measured(tmp_path, "--chunk-elements", "0", "--cases", "plain")
    assert status == 1
    assert [line["failed"] for line in found] == ["model.chunk_elements: found 0, allowed: 1 or more"]
