from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.data.table_file import read_table


def rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [row.values for row in read_table(path, **options)]


def test_csv_with_quotes_newlines_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\ufeff"text",label\n"one, ""two""\nthree",x\n\nlast,y\n', encoding="utf-8")
    assert rows(path) == [{"text": 'one, "two"\nthree', "label": "x"}, {"text": "last", "label": "y"}]
    assert [row.place for row in read_table(path)] == [f"{path}:3", f"{path}:5"]


def test_tsv_keeps_stray_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"open\t1\nin "the" middle\t0\n', encoding="utf-8")
    assert [row["text"] for row in rows(path)] == ['"open', 'in "the" middle']
    path.write_text('text\tlabel\n"quo\tted"\t1\n', encoding="utf-8")
    assert rows(path, quoting=True) == [{"text": "quo\tted", "label": "1"}]


def test_jsonl_gzipped_and_columns_without_header(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n\n{"a": "\xc3\xa4"}\n'))
    assert rows(path) == [{"a": 1}, {"a": "ä"}]
    path = tmp_path / "a.txt"
    path.write_text("x,y\n", encoding="utf-8")
    assert rows(path, format="csv", columns=["p", "q"]) == [{"p": "x", "q": "y"}]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", "", "has no rows"),
        ("a.csv", "text,label\n", "has no rows"),
        ("a.csv", "text,label\na,b\nc\n", "a.csv:3: found 1 columns, expected 2: text, label"),
        ("a.csv", "text,text\na,b\n", "a.csv:1: a column name stands twice"),
        ("a.csv", 'text,label\n"a,b\nc,d\n', "is a quotation mark left open"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "a.jsonl:2: not valid JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: one JSON object a line is expected, found list"),
    ],
)
def test_malformed_files_name_the_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        rows(tmp_path / name)


def test_missing_undecodable_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        rows(tmp_path / "no.csv")
    (tmp_path / "latin.csv").write_bytes(b"text,label\ncaf\xe9,1\n")
    with pytest.raises(DataError, match="UTF-8"):
        rows(tmp_path / "latin.csv")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigurationError, match="allowed: csv, jsonl, tsv"):
        rows(tmp_path / "a.parquet")


def test_ragged_rows_can_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n1\t2\n3\n4\t5\n", encoding="utf-8")
    assert len(rows(path, skip_ragged=True)) == 2
    assert "left out 1 rows" in caplog.text
