"""
Parts of one source, for data that come without a split of their own: `SOURCE[fit]`, `SOURCE[holdout]`, `SOURCE[test]`.

Which part a row belongs to hangs on its texts, its label and a seed, never on its position: the same rows are held out
whether a data set is read from the hub or from files, and rows with the same texts never straddle two parts.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from beem_plugin.common.errors import check_choice, check_number

# What each name stands for. `train` is everything that is not `test`: `fit` and `holdout` together.
PARTS = {"fit": ("fit",), "holdout": ("holdout",), "test": ("test",), "train": ("fit", "holdout")}

_QUANTILE_BINS = 10


def split_source(source: str, allowed: Sequence[str] = tuple(PARTS)) -> tuple[str, str | None]:
    """`"train[holdout]"` -> `("train", "holdout")`; a source without brackets, or a file named so, has no part."""
    match = re.fullmatch(r"(.+)\[(.*)\]", source)
    if match is None or Path(source).exists():
        return source, None
    base, part = match.groups()
    check_choice(f"{source}: the part in brackets", part, allowed)
    return base, part


def share_rows(first: str, second: str) -> bool:
    """Whether two sources are the same, or parts of the same that have rows in common."""
    sliced = re.compile(rf"(.+?)(?:\[({'|'.join(PARTS)})\])?", re.DOTALL)
    (base, part), (other, other_part) = (sliced.fullmatch(one).groups() for one in (first, second))  # type: ignore
    apart = part and other_part and not set(PARTS[part]) & set(PARTS[other_part])
    return base == other and not apart


@dataclass(frozen=True)
class Slicing:
    """
    How a source is cut into `test`, `holdout` and `fit`, stratified by label (by label quantiles for regression):
    `test_fraction` of all rows, `holdout_fraction` of the others but no more than `holdout_max_size`, and the rest.
    """

    test_fraction: float = 0.0
    holdout_fraction: float = 0.1
    holdout_max_size: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("test_fraction", "holdout_fraction"):
            check_number(key, getattr(self, key), high=1, open_high=True)

    def assign(self, texts: Iterable[tuple[str, ...]], labels: Sequence[str | float | None]) -> list[str]:
        """The part of each row: `"fit"`, `"holdout"` or `"test"`."""
        parts = ["fit"] * len(labels)
        strata = _strata(texts, labels, self.seed)
        num_test = round(self.test_fraction * len(labels))
        num_holdout = min(round(self.holdout_fraction * (len(labels) - num_test)), self.holdout_max_size)
        for part, size in (("test", num_test), ("holdout", num_holdout)):
            for row in _take(strata, size):
                parts[row] = part
        return parts


Group = list[int]  # the rows that have the same texts


def _strata(texts: Iterable[tuple[str, ...]], labels: Sequence[str | float | None], seed: int) -> list[list[Group]]:
    """Groups of rows with the same texts, by label, in an order drawn by hashing."""
    groups: dict[bytes, Group] = defaultdict(list)
    for row, parts in enumerate(texts):
        # Copies of one data set differ in blanks at the ends of texts; the slices must not.
        key = "\x1f".join(" ".join(text.split()) for text in parts)
        groups[hashlib.sha256(f"{seed}\x1f{key}".encode()).digest()].append(row)
    ordered = [groups[digest] for digest in sorted(groups)]
    strata: dict[str, list[Group]] = defaultdict(list)
    if any(isinstance(label, float) for label in labels):
        by_label = sorted(range(len(ordered)), key=lambda position: _mean_label(ordered[position], labels))
        ends = [len(ordered) * i // _QUANTILE_BINS for i in range(_QUANTILE_BINS + 1)]
        # Within a bin the order must be the hash's again, not that of the labels.
        bins = [sorted(by_label[begin:end]) for begin, end in pairwise(ends) if begin < end]
        return [[ordered[position] for position in one] for one in bins]
    for group in ordered:
        # The same text with two labels (CoLA has such) counts as the first label by name.
        name = str(labels[group[0]]) if len(group) == 1 else min(str(labels[row]) for row in group)
        strata[name].append(group)
    return [strata[name] for name in sorted(strata)]


def _mean_label(group: Group, labels: Sequence[str | float | None]) -> float:
    values = [label for row in group if isinstance(label := labels[row], float)]
    return sum(sorted(values)) / len(values) if values else 0.0


def _take(strata: list[list[Group]], size: int) -> list[int]:
    """Removes about `size` rows from the strata, in proportion, and returns them."""
    rows_in = [sum(len(group) for group in stratum) for stratum in strata]
    total = sum(rows_in)
    if not total or not size:
        return []
    exact = [size * rows / total for rows in rows_in]
    quotas = [int(share) for share in exact]
    by_remainder = sorted(range(len(strata)), key=lambda i: (quotas[i] - exact[i], i))
    for i in by_remainder[: size - sum(quotas)]:
        quotas[i] += 1
    taken: list[int] = []
    for i, stratum in enumerate(strata):
        kept, room = [], quotas[i]
        for group in stratum:
            if len(group) <= room:
                taken += group
                room -= len(group)
            else:
                kept.append(group)
        strata[i] = kept
    return taken
