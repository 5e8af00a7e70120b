"""GLUE's tasks, by name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError, DataError, check_choice, not_allowed
from beem_plugin.data.dataset_reader import DatasetReader, text_value
from beem_plugin.data.instance import Instance
from beem_plugin.data.table_file import TABLES, TableRow, table_format
from beem_plugin.data.tokenizer import TextEncoder
from beem_plugin.data.vocabulary import LabelRules
from beem_plugin.dataset_readers.glue_tasks import GLUE_TASKS, file_rows, split_rows, task_folder

_ID_COLUMNS = ("id", "idx", "index")


@DatasetReader.register("glue")
class GlueReader(DatasetReader):
    """
    Registered as a `DatasetReader` with name "glue".

    A source (`train_data_path` and the like) is a split, `train`, `validation`, `test`; for MNLI `train`,
    `validation_matched`, `validation_mismatched`, `test_matched`, `test_mismatched`; several splits with commas
    between them; a slice `train[fit]` or `train[holdout]`; or a TSV, CSV or JSON lines file with the task's columns.
    The slices are the same rows wherever the data come from. Test splits have no labels.

    # Parameters

    task : `str`
        `cola`, `sst2`, `mrpc`, `qqp`, `stsb`, `mnli`, `qnli`, `rte` or `wnli`.
    tokenizer : `TextEncoder`
    data_dir : `str`, optional (default = `None`)
        A folder in GLUE's TSV layout, with the task's folder in it or the task's folder itself; or a folder that
        `save_to_disk` of the library datasets wrote. `null` or `""`: the hub.
    max_instances, slicing, holdout_fraction, holdout_max_size, holdout_seed
        See `DatasetReader`.
    label_map, skip_labels
        See `TextClassificationReader`: HANS, for example, with `{"non-entailment": "not_entailment"}`.
    skip_malformed_rows : `bool`, optional (default = `False`)
        Leave out rows of TSV files with the wrong number of columns, as the hub's copy does (QQP has a few).
    """

    def __init__(
        self,
        task: str,
        tokenizer: TextEncoder,
        data_dir: str | None = None,
        skip_malformed_rows: bool = False,
        label_map: dict[str, str] | None = None,
        skip_labels: list[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        check_choice("task", task, GLUE_TASKS)
        self.task_name = task
        self.task = GLUE_TASKS[task]
        self.data_dir = data_dir or None
        self.skip_malformed_rows = skip_malformed_rows
        self.text_fields = self.task.text_fields
        self.label_names = list(self.task.label_names) or None
        self.metric = self.task.metric
        self.is_regression = self.task.is_regression
        self.labels = LabelRules(self.label_names, self.is_regression, label_map or {}, skip_labels or ())

    def _read(self, source: str) -> Iterator[Instance]:
        if "," in source and set(source.split(",")) <= self.task.splits.keys():
            for split in source.split(","):
                yield from self._read(split)
            return
        if source in self.task.splits:
            rows = split_rows(self.task_name, self.task, source, self.data_dir, self.skip_malformed_rows)
            needs_label = not source.startswith("test")
        else:
            rows = file_rows(self._file(source), self.task, self.skip_malformed_rows)
            needs_label = False
        for number, row in enumerate(rows):
            instance = self._from_row(row, number)
            if instance is None:
                continue
            if needs_label and instance.label is None:
                raise DataError(f"{row.place}: no label")
            yield instance

    def _file(self, source: str) -> Path:
        path = Path(source).expanduser()
        if path.is_file():
            return path
        if self.data_dir and not path.is_absolute():
            root = Path(self.data_dir).expanduser()
            if root.is_dir() and (task_folder(self.task_name, self.task, root) / path).is_file():
                return task_folder(self.task_name, self.task, root) / path
        if table_format(source):
            raise DataError(f"{source}: no such file")
        allowed = [*self.task.splits, "train[fit]", "train[holdout]", "a .tsv, .csv or .jsonl file"]
        if f"{source}_matched" in self.task.splits:
            message = f"{self.task_name} has two splits {source!r}: name {source}_matched or {source}_mismatched"
            raise ConfigurationError(message)
        raise ConfigurationError(not_allowed(f"{self.task_name}: split", source, allowed))

    def rows(self, source: str, format: str | None = None) -> Iterator[TableRow]:
        is_table = (format or table_format(source)) in TABLES
        rows = file_rows(Path(source), self.task, format=format) if is_table else super().rows(source, format)
        return (TableRow(row.place, self._renamed(row.values)) for row in rows)

    def _renamed(self, values: dict[str, Any]) -> dict[str, Any]:
        """The row with its text columns named as the hub names them."""
        if all(name in values for name in self.text_fields):
            return values
        names = dict(zip(self.task.tsv_text_columns, self.text_fields, strict=True))
        return {names.get(name, name): value for name, value in values.items()}

    def _from_row(self, row: TableRow, number: int) -> Instance | None:
        """The instance of a row; `None` if its label is skipped."""
        values = self._renamed(row.values)
        column = next((name for name in ("label", self.task.tsv_label_column) if name in values), "label")
        value, what = values.get(column), f"{row.place}: {column}"
        if self.labels.skips(value, what):
            return None
        fields = {name: text_value(values, name, row.place) for name in self.text_fields}
        id_value = next((values[name] for name in _ID_COLUMNS if name in values), number)
        if isinstance(id_value, str) and re.fullmatch(r"[0-9]{1,18}", id_value):
            id_value = int(id_value)
        return Instance(fields={"id": id_value, **fields}, label=self._label(value, what), id=id_value)

    def _instance(self, fields: dict[str, Any]) -> Instance:
        for name in self.text_fields:
            text_value(fields, name, "input")
        label = self._label(fields.pop("label", None), "input: label")
        return Instance(fields=fields, label=label, id=next((fields[n] for n in _ID_COLUMNS if n in fields), None))

    def _label(self, value: Any, what: str) -> str | float | None:
        # The hub marks the test rows' unknown labels with -1.
        return None if value in (-1, -1.0, "-1") else self.labels.parse(value, what)
