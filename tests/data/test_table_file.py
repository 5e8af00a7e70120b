from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.data.table_file import TableFormat, read_table, table_format


def rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    outer = {name: options.pop(name) for name in ("text_fields", "skip_ragged", "optional") if name in options}
    return [row.values for row in read_table(path, TableFormat(**options), **outer)]


def test_csv_with_quotes_newlines_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\ufeff"text",label\n"one, ""two""\nthree",x\n\nlast,y\n', encoding="utf-8")
    assert rows(path) == [{"text": 'one, "two"\nthree', "label": "x"}, {"text": "last", "label": "y"}]
    assert [row.place for row in read_table(path)] == [f"{path}:3", f"{path}:5"]


@pytest.mark.parametrize("last", ["neg\r\n", "neg"])
def test_the_header_may_have_another_line_end_than_the_rows(last: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    expected = [{"text": "one", "label": "pos"}, {"text": "two, three", "label": "neg"}]
    path.write_bytes(f'text,label\none,pos\r\n"two, three",{last}'.encode())
    assert rows(path) == expected
    path.write_bytes(f'text,label\r\none,pos\n"two, three",{last}'.encode())
    assert rows(path) == expected
    path.write_bytes(b"text,label\none,pos\r\ntwo,neg\n")
    assert [row["label"] for row in rows(path)] == ["pos\r", "neg"], "text of files with line feeds"


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


def test_tsv_cells_that_a_writer_must_have_quoted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"a ""good"" film"\tx\n"said" he\ty\n"whole"\tz\n""\tx\n', encoding="utf-8")
    assert [row["text"] for row in rows(path)] == ['a "good" film', '"said" he', '"whole"', ""]
    assert [record.getMessage() for record in caplog.records] == [
        f'{path}:2: read "a ""good"" film" as a quoted cell; dataset_reader.quoting false keeps its quotation marks'
    ]
    assert rows(path, quoting=False)[0]["text"] == '"a ""good"" film"'


def test_tsv_without_header_and_with_all_cells_quoted(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('"a b"\t"x"\n"c"\t"y"\n', encoding="utf-8")
    assert rows(path, columns=["text", "label"]) == [{"text": "a b", "label": "x"}, {"text": "c", "label": "y"}]
    path.write_text('"a"\t1\n"b"\t0\n', encoding="utf-8")
    with pytest.raises(DataError, match='a.tsv:1: found the cell "a"; dataset_reader.quoting must say'):
        rows(path, columns=["text", "label"])
    assert rows(path, columns=["text", "label"], quoting=True)[0] == {"text": "a", "label": "1"}


def test_a_file_without_header_may_lack_the_optional_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("good,1\nbad,2\n")
    columns = ["text", "label", "id"]
    assert rows(path, columns=columns, optional="label") == [{"text": "good", "id": "1"}, {"text": "bad", "id": "2"}]
    with pytest.raises(DataError, match="found 2 columns, expected 3"):
        rows(path, columns=columns)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", "", "has no rows"),
        ("a.csv", "text,label\n", "has no rows"),
        ("a.csv", "text,label\na,b\nc\n", "a.csv:3: found 1 columns, expected 2: text, label"),
        ("a.csv", "text,text\na,b\n", "a.csv:1: a column name stands twice"),
        ("a.csv", 'text,label\n"a,b\nc,d\n', "a.csv:2: a quotation mark left open"),
        ("a.csv", 'text,label\n"a,b\nc,"d\n', "a.csv:2: a quotation mark left open"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "a.jsonl:2: not valid JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: one JSON object a line is expected, found int"),
        ("a.jsonl", '{"a": 1}\n[2]\n', "a.jsonl:2: one JSON object a line is expected, found list"),
        ("a.json", '[{"a": 1},\n{"a" 2}]', "a.json: not valid JSON: .* at line 2, column 6"),
        ("a.jsonl", '{"a": Infinity}\n', "a.jsonl:1: not valid JSON: found Infinity"),
        ("a.jsonl", '{"a": 1e999}\n', "a.jsonl:1: not valid JSON: found the number 1e999"),
        ("a.jsonl", '{"a": ' + "1" * 5000 + "}\n", "a.jsonl:1: not valid JSON: Exceeds the limit"),
        ("a.jsonl", '{"a": 1}\n{"a": {"b": 1, "b": 2}}\n', "a.jsonl:2: not valid JSON: the key 'b' occurs twice"),
        ("a.json", '[{"a": 1}, {"a": 1, "a": 2}]', "a.json: not valid JSON: the key 'a' occurs twice"),
        ("a.jsonl", "[" * 100_000, "a.jsonl: not valid JSON: nested too deeply"),
        (
            "a.tsv",
            'text\tlabel\n"a\tfilm"\tx\n',
            "a.tsv:2: found 3 columns, expected 2.*dataset_reader.quoting must say",
        ),
        ("a.tsv", 'text\tlabel\n"two\nlines"\tx\n', "a.tsv:2: .*dataset_reader.quoting must say"),
        ("a.tsv", 'text\n"two\nlines"\n', "a.tsv:2: .*dataset_reader.quoting must say"),
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


def test_cells_that_only_begin_with_a_quotation_mark_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,a "good" movie\n2,"bad" plot\n3,"it is 5" long" they said\n4,"a ""b"", c"\n')
    assert [row["text"] for row in rows(path)] == [
        'a "good" movie',
        '"bad" plot',
        '"it is 5" long" they said',
        'a "b", c',
    ]


def test_empty_cells_and_cells_of_any_size(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text\ngood\n""\n' + f'"{"long, " * 40_000}"\n')
    assert [len(row["text"]) for row in rows(path)] == [4, 0, 240_000]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_csv_file_is_split_where_its_header_has_most_columns(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "a.csv"
    for header in (f"id{mark}text, short{mark}label", f'"id"{mark}"text, short"{mark}"label"'):
        path.write_bytes(f"{header}\r\n1{mark}well, so, so{mark}x\r\n".encode("utf-16"))
        assert rows(path) == [{"id": "1", "text, short": "well, so, so", "label": "x"}]
    path.write_text(f"\ufefftext{mark}label\nwell, so so{mark}x\n")
    assert rows(path) == [{"text": "well, so so", "label": "x"}]
    path.write_text(f"text,label\na{mark}b,x\n")
    assert rows(path) == [{"text": f"a{mark}b", "label": "x"}]
    assert rows(path, columns=["text", "label"])[1] == {"text": f"a{mark}b", "label": "x"}


def test_delimiter_encoding_and_a_header_in_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes('text;label\n"caf\xe9; bar";x\n'.encode("latin-1"))
    assert rows(path, delimiter=";", encoding="latin-1") == [{"text": "caf\xe9; bar", "label": "x"}]
    other = tmp_path / "a.dat"
    other.write_bytes(path.read_bytes().decode("latin-1").encode("utf-16"))
    assert rows(other, delimiter=";", encoding="utf-16") == rows(path, delimiter=";", encoding="latin-1")
    path = tmp_path / "a.tsv"
    path.write_text('"text"\t"label"\n"two\nlines"\t"x"\n')
    assert rows(path) == [{"text": "two\nlines", "label": "x"}]


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": 2}]', '\n[\n {\n "a": 1\n },\n {"a": 2}\n]\n', '{"a":1}\n{"a":2}'])
def test_json_lines_and_arrays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert rows(path) == [{"a": 1}, {"a": 2}]


def test_an_array_names_the_line_of_each_object(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n {"a":\n  1},\n\n {"a": 2}]')
    assert [row.place for row in read_table(path)] == [f"{path}:2", f"{path}:5"]


def test_the_value_that_pandas_writes_for_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": NaN}\n')
    assert rows(tmp_path / "a.jsonl") == [{"a": None}]


def test_formats_are_told_by_name_or_by_the_first_line(tmp_path: Path) -> None:
    assert table_format("a.jsonl.gz") == "jsonl" and table_format("a.TSV") == "tsv" and table_format("-") is None
    path = tmp_path / "a.dat"
    for text, expected in (
        ('{"sentence": "a"}\n', [{"sentence": "a"}]),
        ("\n a\n", [{"sentence": " a"}]),
        ('\n\n[{"sentence": "a"}]', [{"sentence": "a"}]),
    ):
        path.write_text(text)
        assert rows(path, text_fields=("sentence",)) == expected
    path.write_text("one\ttwo\n")
    assert rows(path, text_fields=("a", "b")) == [{"a": "one", "b": "two"}]
    path.write_text("one\n")
    with pytest.raises(DataError, match=r"a.dat:1: found 1 text\(s\) separated by tabs, allowed: 2"):
        rows(path, text_fields=("a", "b"))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"format": "xls"}, "format: found 'xls'"),
        ({"delimiter": ";;"}, "delimiter: found ';;', allowed: one character"),
        ({"encoding": "utf-99"}, "encoding: found 'utf-99'"),
        ({"encoding": "hex"}, "encoding: found 'hex'"),
        ({"columns": ["a", "a"]}, "columns: found a name twice"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TableFormat(**options)


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
# Where every row ends with a carriage return, it is part of the line end: hence the last row.
TABLES = st.lists(st.tuples(CELLS, CELLS), max_size=5).map(lambda table: [*table, ("end", "end")])


@given(
    table=TABLES,
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\r\n", "\n"]),
    kind=st.sampled_from([(",", "csv"), ("\t", "tsv"), (";", "csv")]),
)
@settings(max_examples=100, deadline=None)
def test_what_the_csv_module_writes_comes_back(
    table: list[tuple[str, str]], quoting: Any, end: str, kind: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, (delimiter, format) = tmp_path_factory.getbasetemp() / "by_csv", kind
    for width in (1, 2):
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end)
            writer.writerow(["a", "b"][:width])
            writer.writerows([row[:width] for row in table])
        found = rows(path, format=format, delimiter=delimiter, quoting=True)
        assert [tuple(row.values()) for row in found] == [row[:width] for row in table]


@given(table=TABLES)
@settings(max_examples=60, deadline=None)
def test_what_pandas_writes_comes_back(table: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table, columns=["a", "b"])
    expected = [{"a": a, "b": b} for a, b in table]
    path = tmp_path_factory.getbasetemp() / "by_pandas"
    for delimiter, format in ((",", "csv"), ("\t", "tsv"), (";", "csv")):
        frame.to_csv(path, sep=delimiter, index=False)
        assert rows(path, format=format, delimiter=delimiter, quoting=True) == expected
    for lines in (True, False):
        frame.to_json(path, orient="records", lines=lines)
        assert rows(path, format="jsonl") == expected


@given(table=TABLES)
@settings(max_examples=60, deadline=None)
def test_a_tsv_file_without_a_setting_is_read_right_or_refused(
    table: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "undecided.tsv"
    for width in (1, 2):
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t")
            writer.writerow(["a", "b"][:width])
            writer.writerows([row[:width] for row in table])
        try:
            found = [tuple(row.values()) for row in rows(path)]
        except DataError as error:
            assert str(path) in str(error)
        else:
            assert found == [row[:width] for row in table]


def test_utf_16_without_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a directory, allowed: a file"):
        list(read_table(tmp_path, text_fields=("text",)))
    path = tmp_path / "texts.txt"
    path.write_bytes("good\nbad\n".encode("utf-16-le"))
    with pytest.raises(DataError, match="texts.txt:1: found NUL characters"):
        list(read_table(path, text_fields=("text",)))
    rows = list(read_table(path, TableFormat(encoding="utf-16-le"), text_fields=("text",)))
    assert [row.values for row in rows] == [{"text": "good"}, {"text": "bad"}]


def test_lines_after_a_header_with_the_text_columns_are_a_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "no_suffix"
    path.write_text('id,title\n1,"good, or so"\n', encoding="utf-8")
    assert [row.values for row in read_table(path, text_fields=["title"])] == [{"id": "1", "title": "good, or so"}]
    path.write_text("id\ttitle\n1\tfine\n", encoding="utf-8")
    assert [row.values for row in read_table(path, text_fields=["title"])] == [{"id": "1", "title": "fine"}]
    for sentence in ("title, or not", "a title,title", "title,title", "titles,and names"):
        path.write_text(f"{sentence}\n", encoding="utf-8")
        assert [row.values for row in read_table(path, text_fields=["title"])] == [{"title": sentence}]
    path.write_text("title\nid, untitled\n", encoding="utf-8")
    assert [row.values for row in read_table(path, text_fields=["title"])] == [
        {"title": "title"},
        {"title": "id, untitled"},
    ]
    assert caplog.messages == ["the first line, ['title'], is read as a text; --format csv reads it as the header"]
