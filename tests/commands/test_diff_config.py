from __future__ import annotations

import pytest

from beem_plugin.commands import main


@pytest.fixture
def configs(tmp_path):
    a, b = tmp_path / "a.jsonnet", tmp_path / "b.jsonnet"
    a.write_text("local w = 'cost'; { model: { type: 'm', exit_policy: { weights: w } }, epochs: 1 + 2 }")
    b.write_text("{ model: { type: 'm', exit_policy: { weights: 'accuracy', min_exit: 2 } }, epochs: 3 }")
    return str(a), str(b)


def test_differences_are_printed_and_the_status_says_so(configs, capsys):
    assert main("allennlp", ["diff-config", *configs]) == 1
    assert capsys.readouterr().out == (
        'model.exit_policy.weights: "cost" -> "accuracy"\nmodel.exit_policy.min_exit: (absent) -> 2\n'
    )


def test_equal_configs(configs, capsys):
    overrides = '{"model.exit_policy": {"weights": "cost"}}'
    assert main("allennlp", ["diff-config", *configs, "-o", overrides]) == 0
    assert capsys.readouterr().out == ""


def test_one_config_and_overrides(configs, capsys):
    assert main("allennlp", ["diff-config", configs[0], "-o", '{"epochs": 5}']) == 1
    assert capsys.readouterr().out == "epochs: 3 -> 5\n"


@pytest.mark.parametrize("arguments", [[], ["none.jsonnet"], ["-o", '{"model.x.y": 1}']])
def test_errors_have_a_status_of_their_own(configs, arguments, capsys):
    assert main("allennlp", ["diff-config", configs[0], *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.out == ""
