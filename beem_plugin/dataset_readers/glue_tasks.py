"""The nine tasks of GLUE, one row each, and where a split comes from: TSV files, saved data, the hub."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from beem_plugin.common.errors import ConfigurationError, DataError, first_line
from beem_plugin.data.hub import offline_if_unreachable
from beem_plugin.data.table_file import TableFormat, TableRow, first_cells, read_table, table_format

_ONE_VALIDATION = {"train": "train", "validation": "dev", "test": "test"}
_TWO_VALIDATIONS = {
    "train": "train",
    "validation_matched": "dev_matched",
    "validation_mismatched": "dev_mismatched",
    "test_matched": "test_matched",
    "test_mismatched": "test_mismatched",
}


@dataclass(frozen=True)
class GlueTask:
    """A task: its files, columns, labels and metric, and what GLUE's site takes."""

    folder: str  # in GLUE's original layout
    text_fields: tuple[str, ...]  # the text columns as the hub, and an instance, name them
    label_names: tuple[str, ...]  # in the hub's order, so that index 1 is what F1 is about; none for regression
    tsv_text_columns: tuple[str, ...] = ()
    tsv_label_column: str = "label"
    headerless_columns: tuple[str, ...] = ()  # of TSV files without a header (CoLA's train and dev)
    metric: str = "accuracy"
    splits: dict[str, str] = None  # type: ignore[assignment]  # the TSV file of each split, without suffix
    submission: dict[str, tuple[str, int]] = field(default_factory=dict)  # file and rows of each test split
    submits_words: bool = False  # `label_names`, not 0 and 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "tsv_text_columns", self.tsv_text_columns or self.text_fields)
        object.__setattr__(self, "splits", self.splits or _ONE_VALIDATION)

    @property
    def is_regression(self) -> bool:
        return not self.label_names


_PAIR = ("sentence1", "sentence2")

GLUE_TASKS: dict[str, GlueTask] = {
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        headerless_columns=("source", "label", "original_mark", "sentence"),
        metric="matthews",
        submission={"test": ("CoLA", 1063)},
    ),
    "sst2": GlueTask("SST-2", ("sentence",), ("negative", "positive"), submission={"test": ("SST-2", 1821)}),
    "mrpc": GlueTask(
        "MRPC",
        _PAIR,
        ("not_equivalent", "equivalent"),
        ("#1 String", "#2 String"),
        "Quality",
        metric="f1",
        submission={"test": ("MRPC", 1725)},
    ),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        tsv_label_column="is_duplicate",
        metric="f1",
        submission={"test": ("QQP", 390965)},
    ),
    "stsb": GlueTask(
        "STS-B", _PAIR, (), tsv_label_column="score", metric="pearson_spearman", submission={"test": ("STS-B", 1379)}
    ),
    "mnli": GlueTask(
        "MNLI",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        _PAIR,
        "gold_label",
        splits=_TWO_VALIDATIONS,
        submission={"test_matched": ("MNLI-m", 9796), "test_mismatched": ("MNLI-mm", 9847), "ax": ("AX", 1104)},
        submits_words=True,
    ),
    "qnli": GlueTask(
        "QNLI",
        ("question", "sentence"),
        ("entailment", "not_entailment"),
        submission={"test": ("QNLI", 5463)},
        submits_words=True,
    ),
    "rte": GlueTask(
        "RTE", _PAIR, ("entailment", "not_entailment"), submission={"test": ("RTE", 3000)}, submits_words=True
    ),
    "wnli": GlueTask("WNLI", _PAIR, ("not_entailment", "entailment"), submission={"test": ("WNLI", 146)}),
}


HUB_NAME = "nyu-mll/glue"
DATA_DIR_KEY = "dataset_reader.data_dir"


def split_rows(name: str, task: GlueTask, split: str, data_dir: str | None, skip_malformed: bool) -> Iterator[TableRow]:
    """The rows of a split of task `name`, from `data_dir` or, where that is empty, from the hub."""
    if not data_dir:
        return _hub_rows(name, split)
    root = Path(data_dir).expanduser()
    if not root.is_dir():
        raise ConfigurationError(f"{DATA_DIR_KEY}: {data_dir!r} is no folder; null means the hub")
    folder = task_folder(name, task, root)
    if (folder / "dataset_dict.json").is_file():
        return _saved_rows(folder, split)
    path = folder / f"{task.splits[split]}.tsv"
    if not path.is_file():
        found = sorted(entry.name for entry in folder.iterdir())
        files = [entry for entry in found if table_format(entry)]
        hint = f"; name a file itself to read it, such as {folder / files[0]}" if files else ""
        raise DataError(f"{folder} has no {path.name}, which is {name}'s {split}; found {', '.join(found)}{hint}")
    return file_rows(path, task, skip_malformed)


def task_folder(name: str, task: GlueTask, root: Path) -> Path:
    """`root` itself, or the task's folder in it under any usual spelling: `SST-2`, `sst2`."""

    def plain(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower())

    folders = sorted(entry for entry in root.iterdir() if entry.is_dir())
    own = [entry for entry in folders if plain(entry.name) in (plain(name), plain(task.folder))]
    return own[0] if own else root


def file_rows(
    path: Path, task: GlueTask, skip_malformed: bool = False, format: str | None = None
) -> Iterator[TableRow]:
    """The rows of a TSV, CSV or JSON lines file, or of standard input, with GLUE's columns or the hub's."""
    table = TableFormat(format or table_format(path))
    if table.format == "tsv":
        # GLUE's quotation marks enclose nothing.
        table = replace(table, quoting=False, columns=_headerless_columns(path, task) if path.is_file() else None)
    try:
        yield from read_table(path, table, skip_ragged=skip_malformed)
    except DataError as error:
        if "columns, expected" not in str(error):
            raise
        raise DataError(f"{error}; dataset_reader.skip_malformed_rows leaves such rows out, as the hub does") from error


def _headerless_columns(path: Path, task: GlueTask) -> tuple[str, ...] | None:
    """The task's columns for a file without a header; `None` for one with a header."""
    first = first_cells(path)
    if not first or any(set(names) <= set(first) for names in (task.text_fields, task.tsv_text_columns)):
        return None
    # Without a header only the number of columns tells what they are.
    if len(first) != len(task.headerless_columns):
        expected = ", ".join(task.tsv_text_columns)
        raise DataError(f"{path}:1: no header with the columns {expected}; found {', '.join(first)[:200]}")
    return task.headerless_columns


def _hub_rows(name: str, split: str) -> Iterator[TableRow]:
    import datasets

    try:
        with offline_if_unreachable():
            data = datasets.load_dataset(HUB_NAME, name, split=split)
    except Exception as error:  # datasets, huggingface_hub and httpx each raise their own
        raise ConfigurationError(
            f"{DATA_DIR_KEY}: none given, and {HUB_NAME} ({name}) could not be loaded from the hub or its cache: "
            f"{first_line(error)}. Set data_dir to a folder with GLUE's TSV files (the configs here take it from "
            "GLUE_DIR in the environment)"
        ) from error
    return (TableRow(f"{HUB_NAME}/{name}/{split}:{number}", dict(values)) for number, values in enumerate(data))


def _saved_rows(folder: Path, split: str) -> Iterator[TableRow]:
    import datasets

    data = datasets.load_from_disk(str(folder))
    if split not in data:
        raise DataError(f"{folder} has no split {split!r}; found {', '.join(data)}")
    return (TableRow(f"{folder}/{split}:{number}", dict(values)) for number, values in enumerate(data[split]))
