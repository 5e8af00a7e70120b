from __future__ import annotations

import json

import pytest

from beem_plugin.commands import main


@pytest.fixture
def runs(tmp_path):
    for name, metrics in {"b": {"accuracy": 0.5, "loss": 1, "note": "x"}, "a/inner": {"accuracy": 0.75}}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.json").write_text(json.dumps(metrics))
    return tmp_path


def test_the_table(runs, capsys):
    assert main("allennlp", ["print-results", str(runs), "-k", "accuracy", "loss"]) == 0
    assert capsys.readouterr().out == (
        f"model_run, accuracy, loss\n{runs}/a/inner/metrics.json, 0.75, N/A\n{runs}/b/metrics.json, 0.5, 1\n"
    )


def test_without_keys_every_number_is_printed(runs, capsys):
    assert main("allennlp", ["print-results", str(runs)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "model_run, accuracy, loss"


def test_another_file_name(runs, capsys):
    assert main("allennlp", ["print-results", str(runs), "-m", "other.json", "-k", "loss"]) == 0
    assert capsys.readouterr().out == "model_run, loss\n"


def test_errors(runs, capsys):
    assert main("allennlp", ["print-results", str(runs / "none")]) == 1
    assert capsys.readouterr().err == f"error: {runs}/none: no such directory\n"
    (runs / "b" / "metrics.json").write_text("{")
    assert main("allennlp", ["print-results", str(runs)]) == 1
    assert "b/metrics.json: not valid JSON" in capsys.readouterr().err
