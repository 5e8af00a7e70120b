"""Which rows and columns each of the paper's tables has."""

from __future__ import annotations

from dataclasses import dataclass

from beem_plugin.comparison.paper.methods import METHODS, UNLISTED

_TABLE_2 = (
    *("final", "reduced", "deebert", "elasticbert", "fastbert", "pabee", "ztw", "leebert", "palbert", "jei_dnn"),
    *("beem-c", "beem-a"),
)


@dataclass(frozen=True)
class Layout:
    """Rows are the methods of each backbone, columns the tasks."""

    title: str
    backbones: tuple[str, ...]
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    relative: bool = True
    """Whether numbers are differences to the first row, the network without exits."""


LAYOUTS = {
    "1": Layout(
        "Table 1, development sets",
        ("albert-base-v2",),
        ("sst2", "mnli", "rte", "qnli", "qqp"),
        (*_TABLE_2[:7], "pcee", *_TABLE_2[7:]),
    ),
    "2": Layout("Table 2", ("bert-base-uncased",), ("rte", "cola"), _TABLE_2),
    "4": Layout("Table 4", ("albert-large-v2", "bert-large-uncased"), ("rte", "cola", "qqp"), ("final", "beem-a")),
    "5": Layout(
        "Table 5", ("albert-base-v2", "albert-large-v2"), ("sst2", "qqp"), ("beem-a w/o fix", "beem-a"), relative=False
    ),
    "methods": Layout(
        "every method under its own training",
        ("albert-base-v2",),
        ("rte", "mrpc", "cola", "sst2"),
        tuple(key for key in METHODS if key not in UNLISTED),
    ),
}
CAPTION_TABLE = "3"
CAPTION_METHODS = {
    "final": "Final-Exit",
    "reduced": "Decoder-{layers}L",
    "deebert": "DeeBERT",
    "elasticbert": "ElasticBERT",
    "pabee": "PABEE",
    "fastbert": "FastBERT",
    "leebert": "LeeBERT-style",
    "deecap": "DeeCap",
    "mue": "MuE",
    "beem-c": "BEEM-C",
    "beem-a": "BEEM-A",
}
FIGURES = {
    "alpha": Layout(
        "accuracy against speed",
        ("albert-base-v2",),
        ("sst2", "qqp"),
        ("beem-a", "beem-c", "pabee", "deebert"),
        relative=False,
    ),
    "lambda": Layout("BEEM-C over lambda", ("albert-base-v2",), ("sst2", "qqp"), ("beem-c",), relative=False),
}
"""Methods are under their own training."""
