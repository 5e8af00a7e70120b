from __future__ import annotations

from pathlib import Path

import pytest

from beem_plugin.common.errors import DataError
from beem_plugin.data import Instance, Vocabulary


def instances(*labels: str | float | None) -> list[Instance]:
    return [Instance(fields={}, label=label) for label in labels]


def test_order_is_given_or_sorted() -> None:
    assert Vocabulary.from_instances(instances("b", "a", None, "b")).labels == ["a", "b"]
    assert Vocabulary.from_instances(instances("10", "9", "-1", "x")).labels == ["-1", "9", "10", "x"]
    vocab = Vocabulary.from_instances(instances("b"), label_names=["b", "a"])
    assert (vocab.label_index("a"), vocab.label_name(0), vocab.num_labels) == (1, "b", 2)


def test_save_and_load_again(tmp_path: Path) -> None:
    vocab = Vocabulary(["not this", "two\nlines", " blank", "carriage\rreturn", "line\u2028end", "\xb2"])
    vocab.save_to_files(tmp_path)
    assert Vocabulary.from_files(tmp_path).labels == vocab.labels
    assert (tmp_path / "non_padded_namespaces.txt").read_text() == "*labels\n*tags\n"
    with pytest.raises(DataError, match="no such file"):
        Vocabulary.from_files(tmp_path / "elsewhere")


def test_regression_has_no_labels(tmp_path: Path) -> None:
    vocab = Vocabulary.from_instances(instances(1.5, 2.0))
    assert vocab.is_regression and vocab.num_labels == 1
    vocab.save_to_files(tmp_path)
    assert Vocabulary.from_files(tmp_path).is_regression


def test_unknown_and_too_few_labels_are_refused() -> None:
    with pytest.raises(DataError, match="found 'yess', allowed: yes, no"):
        Vocabulary(["no", "yes"]).label_index("yess")
    with pytest.raises(DataError, match=r"two labels or more; the training data have \['a'\]"):
        Vocabulary.from_instances(instances("a", "a"))
    with pytest.raises(DataError, match="have none"):
        Vocabulary.from_instances(instances(None))


def test_scores_that_are_read_as_labels_bring_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    Vocabulary.from_instances(instances(*(f"{row / 10}" for row in range(20))))
    assert "20 labels, all of them numbers, in 20 rows: dataset_reader.regression true" in caplog.text
    caplog.clear()
    Vocabulary.from_instances(instances(*(f"name {row}" for row in range(20))))
    assert "20 labels in 20 rows: is dataset_reader.label_field the right column?" in caplog.text
    caplog.clear()
    Vocabulary.from_instances(instances(*(str(row % 12) for row in range(60))))
    assert caplog.text == ""
