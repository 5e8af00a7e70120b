"""The nine tasks of GLUE, one row each."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    `folder` is the task's in GLUE's original layout. `text_fields` are the text columns as the hub names them, which
    are the names of an instance's fields; `label_names` in the hub's order, so that index 1 is what F1 is about, none
    for regression; `tsv_text_columns` and `tsv_label_column` the same columns in the TSV files, and
    `headerless_columns` those of files without a header line (CoLA's train and dev). `metric` is a key of
    `beem_plugin.common.metrics.METRICS`.

    `splits` has the TSV file of each split, without suffix; `submission` the file of each test split in a submission to
    GLUE's site, without suffix, and the rows that the site demands; `submits_words` says whether those files hold
    `label_names`, or 0 and 1.
    """

    folder: str
    text_fields: tuple[str, ...]
    label_names: tuple[str, ...]
    tsv_text_columns: tuple[str, ...] = ()
    tsv_label_column: str = "label"
    headerless_columns: tuple[str, ...] = ()
    metric: str = "accuracy"
    splits: dict[str, str] = None  # type: ignore[assignment]  # filled in below
    submission: dict[str, tuple[str, int]] = field(default_factory=dict)
    submits_words: bool = False

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
        "STS-B",
        _PAIR,
        (),
        tsv_label_column="score",
        metric="pearson_spearman",
        submission={"test": ("STS-B", 1379)},
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
        "RTE",
        _PAIR,
        ("entailment", "not_entailment"),
        submission={"test": ("RTE", 3000)},
        submits_words=True,
    ),
    "wnli": GlueTask("WNLI", _PAIR, ("not_entailment", "entailment"), submission={"test": ("WNLI", 146)}),
}
