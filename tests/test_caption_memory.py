"""`scripts/caption_memory.py` on a decoder of a few words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.tiny_project import ROOT

SMALL = ["--layers", "2", "--hidden", "64", "--words", "30", "--batch", "2", "--tokens", "4", "--device", "cpu"]


def memory(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    # From another folder, where nothing but the script itself says where the package is.
    command = [sys.executable, str(ROOT / "scripts" / "caption_memory.py"), *SMALL, *more]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_every_case_is_measured(tmp_path: Path) -> None:
    done = memory(tmp_path)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["exits"] for line in found] == [1, 2, 2] and all(line["seconds_a_step"] > 0 for line in found)


def test_a_case_that_fails_says_why(tmp_path: Path) -> None:
    done = memory(tmp_path, "--chunk-elements", "0", "--cases", "plain")
    assert done.returncode == 1
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["failed"] for line in found] == ["model.chunk_elements: found 0, allowed: 1 or more"]
