from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.metrics import METRICS
from beem_plugin.common.registry import Params
from beem_plugin.data import DatasetReader, Instance, TextEncoder, hub
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.dataset_readers.glue_tasks import GLUE_TASKS
from tests.tiny_project import run

# task -> (file, header, row, label's name)
TSV: dict[str, tuple[str, str, str, str | float]] = {
    "cola": ("CoLA/train.tsv", "", 'gj04\t0\t*\tThe "film', "unacceptable"),
    "sst2": ("SST-2/train.tsv", "sentence\tlabel", "a good film \t1", "positive"),
    "mrpc": (
        "MRPC/train.tsv",
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        '1\t70\t71\tthe "film\tthe end',
        "equivalent",
    ),
    "qqp": (
        "QQP/train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "9\t1\t2\ta film\tthe film\t1",
        "duplicate",
    ),
    "stsb": (
        "STS-B/train.tsv",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tg\tf\ty\t1\ts\ts\ta film\tthe film\t3.800",
        3.8,
    ),
    "mnli": (
        "MNLI/dev_matched.tsv",
        "index\tpromptID\tsentence1\tsentence2\tlabel1\tlabel2\tgold_label",
        "0\t1\ta film\tthe film\tentailment\tneutral\tneutral",
        "neutral",
    ),
    "qnli": (
        "QNLI/dev.tsv",
        "index\tquestion\tsentence\tlabel",
        "0\ta film\tthe end\tnot_entailment",
        "not_entailment",
    ),
    "rte": ("RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel", "0\ta film\tthe end\tentailment", "entailment"),
    "wnli": ("WNLI/dev.tsv", "index\tsentence1\tsentence2\tlabel", "0\ta film\tthe end\t1", "entailment"),
}

Make = Callable[..., DatasetReader]


@pytest.fixture
def make(tokenizer_folder: Path) -> Make:
    def build(task: str, data_dir: Path | str | None = None, **options: Any) -> DatasetReader:
        config = {"type": "glue", "task": task, "tokenizer": {"model_name": str(tokenizer_folder)}, **options}
        return DatasetReader.from_params(Params({**config, "data_dir": data_dir and str(data_dir)}))

    return build


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line for line in lines if line), encoding="utf-8")
    return path


def rte_rows(count: int) -> list[str]:
    names = ("entailment", "not_entailment")
    return [f"{row}\tfilm {row}\tthe end\t{names[row % 2]}" for row in range(count)]


RTE_HEADER = "index\tsentence1\tsentence2\tlabel"


def view(instances: list[Instance]) -> list[tuple[Any, Any]]:
    return [(instance.fields, instance.label) for instance in instances]


@pytest.mark.parametrize("task", list(GLUE_TASKS))
def test_every_task_in_its_tsv_layout(task: str, make: Make, tmp_path: Path) -> None:
    file, header, row, label = TSV[task]
    path = write(tmp_path / file, header, row)
    split = {"train": "train", "dev": "validation", "dev_matched": "validation_matched"}[path.stem]
    expected = view(make(task, tmp_path).read(split))
    assert view(make(task, path.parent).read(split)) == expected
    assert view(make(task).read(str(path))) == expected
    fields, found = expected[0]
    assert found == label and type(found) is type(label)
    reader = make(task)
    assert list(fields) == ["id", *reader.text_fields] and fields["id"] == (9 if task == "qqp" else 0)
    assert fields[reader.text_fields[-1]] in row
    assert reader.metric in METRICS and reader.is_regression == (task == "stsb")


def test_predict_reads_the_file_of_every_task(trained: Path, make: Make, tmp_path: Path) -> None:
    for task, (file, header, row, _) in TSV.items():
        path = write(tmp_path / file, header, row, row)
        if GLUE_TASKS[task].is_regression:  # the archive is a classifier's
            found = [read.values for read in make(task).rows(str(path))]
        else:
            printed = run("predict", str(trained), str(path), "-o", json.dumps({"dataset_reader.task": task})).stdout
            found = [json.loads(line) for line in printed.splitlines()]
        assert len(found) == 2 and all(found[0][name] in row for name in GLUE_TASKS[task].text_fields), task


def test_lower_case_folders_and_file_names_inside_the_task_folder(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "sst2" / "train_subset.tsv", "sentence\tlabel", "a\t1", "b\t0")
    assert len(make("sst2", tmp_path).read("train_subset.tsv")) == 2


def test_instances_are_tokenized_as_pairs(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "RTE" / "train.tsv", RTE_HEADER, *rte_rows(1))
    reader = make("rte", tmp_path)
    instance = reader.read("train")[0]
    assert instance.encoding["input_ids"] == [2, 7, 1, 3, 8, 9, 3]
    assert instance.encoding["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert reader.text_to_instance(sentence1="film 0", sentence2="the end").encoding == instance.encoding


def test_test_splits_have_no_labels(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "CoLA" / "test.tsv", "index\tsentence", "0\ta film", "1\tthe film")
    write(tmp_path / "MRPC" / "test.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String", "5\t1\t2\ta\tb")
    assert [(i.fields["sentence"], i.label) for i in make("cola", tmp_path).read("test")] == [
        ("a film", None),
        ("the film", None),
    ]
    assert view(make("mrpc", tmp_path).read("test")) == [({"id": 5, "sentence1": "a", "sentence2": "b"}, None)]


def test_json_lines_and_csv_with_the_tasks_columns(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"premise": "a", "hypothesis": "b", "label": 2}, {"premise": "a", "hypothesis": "c", "label": "neutral"}]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert [i.label for i in make("mnli").read(str(path))] == ["contradiction", "neutral"]
    path = write(tmp_path / "own.csv", "sentence1,sentence2,gold_label", '"a, b",c,entailment')
    assert make("mnli").read(str(path))[0].fields == {"id": 0, "premise": "a, b", "hypothesis": "c"}


def test_slices_make_up_train_and_are_those_of_the_hub(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "RTE" / "train.tsv", RTE_HEADER, *rte_rows(200))
    reader = make("rte", tmp_path)
    fit, held = reader.read("train[fit]"), reader.read("train[holdout]")
    assert Counter(i.label for i in held) == {"entailment": 10, "not_entailment": 10}
    assert sorted(i.fields["id"] for i in [*fit, *held]) == list(range(200))
    assert len(make("rte", tmp_path, max_instances=7).read("train[holdout]")) == 7
    assert len(make("rte", tmp_path, holdout_fraction=0.5).read("train[holdout]")) == 100

    rows = [{"idx": row, "sentence1": f"film {row}", "sentence2": "the end ", "label": row % 2} for row in range(200)]
    hub_order = datasets.Dataset.from_list(rows[::-1])
    monkeypatch.setattr(datasets, "load_dataset", lambda path, name, split: {"train": hub_order}[split])
    monkeypatch.setattr(hub, "hub_reachable", lambda: True)
    from_hub = make("rte", "").read("train[holdout]")
    assert sorted((i.id, i.label) for i in from_hub) == sorted((i.id, i.label) for i in held)


def test_save_to_disk_folders(make: Make, tmp_path: Path) -> None:
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["negative", "positive"])}
    )
    train = datasets.Dataset.from_list([{"sentence": "a", "label": 1}], features=features)
    test = datasets.Dataset.from_list([{"sentence": "b", "label": -1}], features=features)
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(str(tmp_path / "saved"))
    reader = make("sst2", tmp_path / "saved")
    assert view(reader.read("train")) == [({"id": 0, "sentence": "a"}, "positive")]
    assert view(reader.read("test")) == [({"id": 0, "sentence": "b"}, None)]
    with pytest.raises(DataError, match="has no split 'validation'; found train, test"):
        reader.read("validation")


def test_scores_of_the_hub_equal_those_of_the_files(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "hub.jsonl"
    path.write_text(json.dumps({"sentence1": "a", "sentence2": "b", "label": 3.799999952316284}))
    assert make("stsb").read(str(path))[0].label == 3.8


def test_unreachable_hub_says_what_to_do(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("Couldn't reach 'nyu-mll/glue' on the Hub")

    monkeypatch.setattr(hub, "hub_reachable", lambda: False)
    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ConfigurationError, match="dataset_reader.data_dir: none given.*Couldn't reach.*GLUE_DIR"):
        make("rte").read("train")


def test_missing_files_name_what_is_there(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "QNLI" / "train_subset.tsv", "index\tquestion\tsentence\tlabel", "0\ta\tb\tentailment")
    with pytest.raises(DataError, match="has no train.tsv, which is qnli's train; found train_subset.tsv; name a file"):
        make("qnli", tmp_path).read("train")
    with pytest.raises(ConfigurationError, match="data_dir: '.*nowhere' is no folder"):
        make("qnli", tmp_path / "nowhere").read("train")
    with pytest.raises(DataError, match="my.tsv: no such file"):
        make("qnli", tmp_path).read("my.tsv")


def test_unknown_tasks_and_splits(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="task: found 'sst', allowed: sst2"):
        make("sst")
    with pytest.raises(ConfigurationError, match="rte: split: found 'validate', allowed: validation, "):
        make("rte", tmp_path).read("validate")
    with pytest.raises(ConfigurationError, match="name validation_matched or validation_mismatched"):
        make("mnli", tmp_path).read("validation")
    with pytest.raises(ConfigurationError, match="found 'test', allowed: fit, holdout"):
        make("rte", tmp_path).read("train[test]")


@pytest.mark.parametrize(
    "row, message",
    [
        ("1\ta\tb", "train.tsv:3: found 3 columns, expected 4: .*skip_malformed_rows"),
        ("1\ta\tb\tentail", "train.tsv:3: label: found 'entail', allowed: entailment"),
        ("1\ta\tb\t", "train.tsv:3: no label"),
    ],
)
def test_malformed_rows_name_the_line(row: str, message: str, make: Make, tmp_path: Path) -> None:
    write(tmp_path / "RTE" / "train.tsv", RTE_HEADER, *rte_rows(1), row)
    with pytest.raises(DataError, match=message):
        make("rte", tmp_path).read("train")


def test_malformed_rows_can_be_left_out(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "RTE" / "train.tsv", RTE_HEADER, *rte_rows(3), "4\ttorn")
    assert len(make("rte", tmp_path, skip_malformed_rows=True).read("train")) == 3


def test_a_file_without_the_tasks_columns(make: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "x.tsv", "premise\thypothesis\tlabel", "a\tb\tentailment")
    with pytest.raises(DataError, match="x.tsv:1: no header with the columns sentence1, sentence2"):
        make("rte").read(str(path))
    empty = tmp_path / "empty.tsv"
    empty.touch()
    with pytest.raises(DataError, match="no rows"):
        make("rte").read(str(empty))


def test_text_to_instance(make: Make) -> None:
    reader = make("rte")
    instance = reader.text_to_instance(sentence1="a", sentence2="b", id=4, source="web", label=1)
    assert instance.fields == {"sentence1": "a", "sentence2": "b", "id": 4, "source": "web"}
    assert (instance.id, instance.label) == (4, "not_entailment")
    with pytest.raises(DataError, match="input: no column 'sentence2'; found: sentence_2"):
        reader.text_to_instance(sentence1="a", sentence_2="b")
    with pytest.raises(DataError, match="input: column 'sentence1' holds int"):
        reader.text_to_instance(sentence1=5, sentence2="b")


COUNTS = {
    "cola": {"train": 8551, "validation": 1043, "test": 1063},
    "rte": {"train": 2490, "validation": 277, "test": 3000},
    "mrpc": {"train": 3668, "validation": 408, "test": 1725},
    "sst2": {"train": 67349, "validation": 872, "test": 1821},
    "stsb": {"train": 5749, "validation": 1500, "test": 1379},
    "qnli": {"validation": 5463, "test": 5463},
}


@pytest.mark.skipif("BEEM_GLUE_DIR" not in os.environ, reason="needs GLUE's files: set BEEM_GLUE_DIR")
@pytest.mark.parametrize("task", list(COUNTS))
def test_row_counts_of_the_official_files(task: str, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = lambda self, texts: RaggedBatch.from_columns({"input_ids": [[3]] * len(texts)})  # noqa: E731
    monkeypatch.setattr(TextEncoder, "encode_batch", encoded)
    reader = make(task, os.environ["BEEM_GLUE_DIR"])
    assert {split: len(reader.read(split)) for split in COUNTS[task]} == COUNTS[task]
