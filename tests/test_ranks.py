"""Two processes of a launcher share the data of `evaluate`, `trace` and `predict`, and give what one gives."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.commands import main
from beem_plugin.common.ranks import gathered, joined, launched_rank
from tests.forked import two_processes


def commands_of(archive: str, source: str, texts: str) -> list[list[str]]:
    """The three commands, whose files go into the working directory."""
    return [
        ["evaluate", archive, source, "--batch-size", "5", "--output-file", "m.json", "--predictions-output-file", "p"],
        ["trace", archive, source, "--batch-size", "5", "--output-file", "t.npz"],
        ["predict", archive, texts, "--batch-size", "3", "--output-file", "out.jsonl.gz", "--silent"],
    ]


def fail_second() -> int:
    with joined():
        if launched_rank() == 1:
            raise MemoryError
        gathered([1])
    return 0


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    lines = [f"a {'good' if row % 3 else 'bad'} film {row}" for row in range(50)]
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def check_same(found: bytes, expected: bytes) -> None:
    """Equal but for rounding: an engine's batches depend on which samples it gets."""
    for line, other in zip(map(json.loads, found.splitlines()), map(json.loads, expected.splitlines()), strict=True):
        for numbers in ("probabilities", "score"):
            assert line.pop(numbers) == pytest.approx(other.pop(numbers), abs=1e-6)
        assert line == other


def test_two_processes_give_what_one_gives(
    trained: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = commands_of(str(trained / "model.tar.gz"), "validation", str(texts))
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    monkeypatch.chdir(one)
    assert [main("allennlp", command) for command in commands] == [0, 0, 0]
    # Each in processes of its own, as a launcher starts them: a port cannot be given to a second group at once.
    results = [result for command in commands for result in two_processes(main, "allennlp", command, folder=two)]
    assert [result.returncode for result in results] == [0] * 6, [result.stderr for result in results]
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
    metrics = [json.loads((folder / "m.json").read_text()) for folder in (one, two)]
    assert metrics[1] == metrics[0] and metrics[0]["samples"] > 10
    check_same((two / "p").read_bytes(), (one / "p").read_bytes())
    traces = [ExitTrace.load(folder / "t.npz") for folder in (one, two)]
    assert traces[1].ids == traces[0].ids and torch.allclose(traces[1].logits, traces[0].logits, atol=1e-6)
    predictions = [gzip.decompress((folder / "out.jsonl.gz").read_bytes()) for folder in (one, two)]
    found = [json.loads(line)["sentence"] for line in predictions[1].splitlines()]
    assert found == texts.read_text().splitlines()
    check_same(predictions[1], predictions[0])
    first, second = results[::2], results[1::2]
    assert '"samples"' in first[0].stdout and not any("samples" in one.stdout for one in second), "one process prints"
    assert "50 predictions in" in first[2].stderr and "predictions in" not in second[2].stderr


def test_standard_input_cannot_be_shared(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main("allennlp", ["predict", str(trained / "model.tar.gz"), "-", "--output-file", "out.jsonl"]) != 0
    assert "found 2 processes of a launcher, allowed with them: an input file" in capsys.readouterr().err


def test_a_process_that_fails_ends_the_others(tmp_path: Path) -> None:
    results = two_processes(fail_second, folder=tmp_path)
    assert results[0].returncode != 0 and results[1].returncode != 0
    assert "MemoryError" in results[1].stderr and "MemoryError" not in results[0].stderr
