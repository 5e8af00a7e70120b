from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.data.slices import Slicing, share_rows, split_source

TEXTS = [(f"text {i}", "same") for i in range(1000)]
LABELS: list[str | float | None] = ["yes" if i % 4 else "no" for i in range(1000)]


def test_sizes_and_label_shares() -> None:
    parts = Slicing(test_fraction=0.2, holdout_fraction=0.1).assign(TEXTS, LABELS)
    assert Counter(parts) == {"test": 200, "holdout": 80, "fit": 720}
    for part in ("test", "holdout", "fit"):
        labels = [label for label, name in zip(LABELS, parts) if name == part]
        assert labels.count("no") == len(labels) // 4


def test_holdout_is_capped() -> None:
    assert Counter(Slicing(holdout_max_size=30).assign(TEXTS, LABELS))["holdout"] == 30


@pytest.mark.parametrize("labels", [LABELS, [i % 50 / 10 for i in range(1000)]])
def test_parts_do_not_depend_on_the_order_of_rows(labels: list[str | float | None]) -> None:
    slicing = Slicing(test_fraction=0.1)
    expected = dict(zip(TEXTS, slicing.assign(TEXTS, labels)))
    rows = list(zip(TEXTS, labels))
    random.Random(0).shuffle(rows)
    texts, shuffled = zip(*rows)
    assert dict(zip(texts, slicing.assign(texts, shuffled))) == expected
    padded = [tuple(f" {text}  " for text in pair) for pair in TEXTS]
    assert slicing.assign(padded, labels) == list(expected.values())


def test_seed_changes_the_parts() -> None:
    assert Slicing(seed=1).assign(TEXTS, LABELS) != Slicing(seed=2).assign(TEXTS, LABELS)


def test_equal_texts_stay_together_even_with_different_labels() -> None:
    texts = [(f"text {i % 300}",) for i in range(1000)]
    parts = Slicing(test_fraction=0.2, holdout_fraction=0.3).assign(texts, LABELS)
    where: dict[tuple[str, ...], set[str]] = {}
    for text, part in zip(texts, parts):
        where.setdefault(text, set()).add(part)
    assert all(len(found) == 1 for found in where.values())
    assert 190 <= Counter(parts)["test"] <= 200


def test_regression_is_stratified_by_quantiles() -> None:
    scores: list[str | float | None] = [i / 200 for i in range(1000)]
    parts = Slicing(holdout_fraction=0.1).assign(TEXTS, scores)
    held = sorted(score for score, part in zip(scores, parts) if part == "holdout" and isinstance(score, float))
    assert [sum(i / 2 <= score < (i + 1) / 2 for score in held) for i in range(10)] == [10] * 10
    # within a quantile it is a draw, not its lowest scores
    assert sum(score % 0.5 for score in held) / 100 == pytest.approx(0.25, abs=0.05)


def test_source_syntax(tmp_path: Path) -> None:
    assert split_source("train") == ("train", None)
    assert split_source("my/train.csv[holdout]") == ("my/train.csv", "holdout")
    (tmp_path / "odd[1]").touch()
    assert split_source(str(tmp_path / "odd[1]")) == (str(tmp_path / "odd[1]"), None)
    with pytest.raises(ConfigurationError, match="found 'heldout', allowed: holdout"):
        split_source("train[heldout]", ("fit", "holdout"))


def test_sources_that_share_rows() -> None:
    shared = ("a.csv", "a.csv"), ("a.csv[fit]", "a.csv"), ("a.csv[train]", "a.csv[holdout]"), ("a[3]", "a[3]")
    assert all(share_rows(*one) and share_rows(*one[::-1]) for one in shared)
    apart = ("a.csv[fit]", "a.csv[holdout]"), ("a.csv[test]", "a.csv[train]"), ("a.csv", "b.csv"), ("a[3]", "a[4]")
    assert not any(share_rows(*one) or share_rows(*one[::-1]) for one in apart)


def test_fractions_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="holdout_fraction: found 1.5"):
        Slicing(holdout_fraction=1.5)


def test_a_reader_that_defines_read_alone_takes_inputs_and_names_a_part_without_texts() -> None:
    class Two(DatasetReader):
        def _read(self, source: str) -> Iterator[Instance]:
            yield from (Instance({"text": text}, label=label) for text, label in (("good", "a"), ("bad", "b")))

    reader = Two(None)  # type: ignore[arg-type]
    (found,) = reader.untokenized([{"text": "good", "id": 3}])
    assert (found.fields, found.label, found.id) == ({"text": "good", "id": 3}, None, 3)
    with pytest.raises(DataError, match=r"x\[holdout\]: no instances, as x has few different texts; allowed: more"):
        reader.read("x[holdout]")
    with pytest.raises(ConfigurationError, match="found DatasetReader, which does not define `_read`"):
        list(DatasetReader(None)._read("x"))  # type: ignore[arg-type]
