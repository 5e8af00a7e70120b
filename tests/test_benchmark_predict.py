"""`scripts/benchmark_predict.py` on a tiny network."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_project import ROOT, run


def test_the_command_and_the_pipeline_are_timed_on_one_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_process(command: list[str], **options: Any) -> None:
        assert command[:4] == [sys.executable, "-m", "beem_plugin", "predict"]
        run(*command[3:])

    monkeypatch.setattr(subprocess, "run", in_process)
    script = runpy.run_path(str(ROOT / "scripts" / "benchmark_predict.py"))
    tiny = ["--layers", "2", "--hidden-size", "16", "--heads", "2", "--batch-sizes", "4", "--pipeline-sentences", "8"]
    result = script["main"]([*tiny, "--sentences", "400", "--folder", str(tmp_path)])
    assert set(result["pipeline_sentences_per_second"]) == {4} and result["predict_seconds"] > 0
    assert result["average_exit"] == pytest.approx(1.5, abs=0.2), "half of the sentences exit at each of two exits"
    assert len((tmp_path / "predictions.jsonl").read_text().splitlines()) == 400
