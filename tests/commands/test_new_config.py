"""`allennlp new-config` writes configs that train."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.params import load_config, load_config_dict
from beem_plugin.training.new_config import Columns, config_for, look_at, summary_of
from beem_plugin.training.train import train_model
from tests.tiny_project import CONFIGS, run, write_tickets


def test_the_config_trains_with_exits(tiny_environment: dict[str, str], tmp_path: Path) -> None:
    data, output = write_tickets(tmp_path / "tickets.csv"), tmp_path / "configs" / "mine.jsonnet"
    command = ["new-config", "--data", str(data), "--output", str(output), "--encoder"]
    done = run(*command, tiny_environment["BEEM_BACKBONE"])
    said = done.stdout
    assert "warning: about 16 rows will be held out" in done.stderr
    assert "160 rows; text: title; category: " in said and f"next: allennlp train {output}" in said
    config = load_config_dict(output)
    assert config["dataset_reader"]["metric"] == "macro_f1" and config["dataset_reader"]["text_fields"] == ["title"]
    assert (
        config["model"]["encoder"]["exit_layers"] == [1, 2, 3] and config["model"]["encoder"]["branch"]["width"] == 16
    )
    assert config["trainer"]["num_epochs"] == 10 and config["dataset_reader"]["tokenizer"]["max_length"] == 32
    run("train", str(output), "-s", str(tmp_path / "dry"), "--dry-run")
    run("train", str(output), "-s", str(tmp_path / "run"), "-o", '{"trainer.num_epochs": 1, "trainer.cuda_device": -1}')
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["calibration_source"] == f"{data}[holdout]" and 0 <= metrics["test_early_exit_macro_f1"] <= 1
    refused = run(*command, tiny_environment["BEEM_BACKBONE"], check=False)
    assert refused.returncode == 1 and "exists, allowed: a new file, or --force" in refused.stderr
    no_encoder = run(*command, str(tmp_path / "missing"), "--force", check=False)
    assert no_encoder.returncode == 1 and "error: encoder: " in no_encoder.stderr


def test_a_guess_among_several_columns_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "a.csv"
    data.write_text("text,kind,mark\n" + "".join(f"text {n},{'ab'[n % 2]},{n % 3}\n" for n in range(20)))
    assert look_at(str(data)).label_field == "mark"
    assert capsys.readouterr().err == "warning: --label: 'mark' is taken; 'kind' could be classes, too\n"
    assert look_at(str(data), None, "kind").label_field == "kind" and not capsys.readouterr().err


def test_columns_are_found_or_given(tmp_path: Path) -> None:
    semicolons = write_tickets(tmp_path / "a.csv", delimiter=";")
    semicolons.write_text(semicolons.read_text().replace(" ", ", "))
    found = look_at(str(semicolons))
    assert (found.text_fields, found.label_field) == (["title"], "category") and sum(found.labels.values()) == 160
    found = look_at(str(write_tickets(tmp_path / "b.csv")), ["team", "title"], "category")
    assert found.text_fields == ["team", "title"] and sum(found.labels.values()) == 160
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"premise": f"it is {n}", "hypothesis": "so", "gold": ("yes", "no")[n % 2]} for n in range(20)]
    pairs.write_text("\n".join(map(json.dumps, rows)))
    found = look_at(str(pairs))
    assert found == Columns(["premise", "hypothesis"], "gold", Counter(yes=10, no=10), [4] * 20)


def test_what_cannot_be_classes_is_one_line(tmp_path: Path) -> None:
    data = write_tickets(tmp_path / "tickets.csv")
    with pytest.raises(ConfigurationError, match="--label: found 'kind', allowed: "):
        look_at(str(data), label_field="kind")
    with pytest.raises(ConfigurationError, match="--text: found title, title, allowed: one or two columns of"):
        look_at(str(data), ["title", "title"])
    with pytest.raises(ConfigurationError, match="--text: found the label's column 'category', allowed: another of"):
        look_at(str(data), ["category"], "category")
    with pytest.raises(ConfigurationError, match="found 160 values, most of them once: no classes in 'number'"):
        look_at(str(data), label_field="number")
    data.write_text("text,label\ngood,a\nbad,\n")
    with pytest.raises(DataError, match=r"tickets.csv:3: label: no label"):
        look_at(str(data))
    data.write_text("text,note\n" + "".join(f"good {n},{n}\n" for n in range(20)))
    with pytest.raises(ConfigurationError, match="--label: not given, and no column looks like classes; found: note"):
        look_at(str(data), ["text"])


def test_scores_are_predicted_by_a_regressor(tiny_environment: dict[str, str], tmp_path: Path) -> None:
    data = tmp_path / "scores.tsv"
    rows = [f"the film is good {number}\tit is bad\t{number % 23 / 4:.2f}" for number in range(90)]
    data.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    found = look_at(str(data))
    assert (found.text_fields, found.label_field, found.has_scores) == (["sentence1", "sentence2"], "score", True)
    assert summary_of(found) == "90 rows; text: sentence1, sentence2; score: scores from 0.00 to 5.50"
    (tmp_path / "c.jsonnet").write_text(config_for(found, str(data), tiny_environment["BEEM_BACKBONE"], "c.jsonnet"))
    train_model(load_config(tmp_path / "c.jsonnet", '{"trainer.cuda_device": -1}'), tmp_path / "run", dry_run=True)
    config = load_config_dict(tmp_path / "c.jsonnet")
    assert config["dataset_reader"]["regression"] and config["trainer"]["validation_metric"] == "+pearson_spearman"
    assert config["model"]["exit_policy"]["type"] == "predicted_error"


def test_the_shipped_config_is_one_that_is_written() -> None:
    labels = Counter(billing=1200, login=900, delivery=700, other=250)
    found = Columns(["title"], "category", labels, [30] * 100)
    shipped = CONFIGS / "my_data.jsonnet"
    assert shipped.read_text() == config_for(found, "tickets.csv", "microsoft/mpnet-base", shipped.name, (12, 768))
    assert "recommended(layers=4, exits=[2, 3, 4], width=192)" in config_for(
        found, "x", "minilm", "x.jsonnet", (6, 384)
    )
    quoted = Columns(["it's"], "a\\b", labels, [3] * 100)
    assert '"it\'s"' in config_for(quoted, "x", "bert-base-uncased", "x.jsonnet", (12, 768))


@pytest.mark.parametrize("name, pooling", [("bert-base-uncased", "cls"), ("microsoft/mpnet-base", "mean")])
def test_the_encoder_chooses_what_exits_read(name: str, pooling: str, tmp_path: Path) -> None:
    found = Columns(["title"], "category", Counter(a=50, b=50), [30] * 100)
    (tmp_path / "own.jsonnet").write_text(config_for(found, "x.csv", name, "own.jsonnet", (12, 768)))
    config = load_config_dict(tmp_path / "own.jsonnet")
    assert config["model"]["encoder"]["pooler"] == {"type": "bert_pooler", "pooling": pooling}
    assert config["trainer"]["validation_metric"] == "+accuracy"
