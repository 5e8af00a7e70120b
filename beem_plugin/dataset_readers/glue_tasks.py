"""The nine tasks of GLUE, one row each."""

from __future__ import annotations

from dataclasses import dataclass

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
    """
    # Parameters

    folder : `str`
        The task's folder in GLUE's original layout.
    text_fields : `tuple[str, ...]`
        The text columns as the hub names them; these are the names of an instance's fields.
    label_names : `tuple[str, ...]`
        In the hub's order, so that index 1 is what F1 is about; none for regression.
    tsv_text_columns, tsv_label_column
        The same columns in the TSV files.
    headerless_columns : `tuple[str, ...]`
        The columns of files without a header line (CoLA's train and dev).
    metric : `str`
        A key of `beem_plugin.common.metrics.METRICS`.
    splits : `dict[str, str]`
        Split -> TSV file, without suffix.
    """

    folder: str
    text_fields: tuple[str, ...]
    label_names: tuple[str, ...]
    tsv_text_columns: tuple[str, ...] = ()
    tsv_label_column: str = "label"
    headerless_columns: tuple[str, ...] = ()
    metric: str = "accuracy"
    splits: dict[str, str] = None  # type: ignore[assignment]  # filled in below

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
    ),
    "sst2": GlueTask("SST-2", ("sentence",), ("negative", "positive")),
    "mrpc": GlueTask(
        "MRPC", _PAIR, ("not_equivalent", "equivalent"), ("#1 String", "#2 String"), "Quality", metric="f1"
    ),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        tsv_label_column="is_duplicate",
        metric="f1",
    ),
    "stsb": GlueTask("STS-B", _PAIR, (), tsv_label_column="score", metric="pearson_spearman"),
    "mnli": GlueTask(
        "MNLI",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        _PAIR,
        "gold_label",
        splits=_TWO_VALIDATIONS,
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), ("entailment", "not_entailment")),
    "rte": GlueTask("RTE", _PAIR, ("entailment", "not_entailment")),
    "wnli": GlueTask("WNLI", _PAIR, ("not_entailment", "entailment")),
}
