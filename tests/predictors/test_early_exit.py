from __future__ import annotations

import csv
import gzip
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.archival import load_archive
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.data.table_file import TableRow
from beem_plugin.predictors import EarlyExitPredictor, Predictor
from beem_plugin.predictors.output import output
from tests.tiny_project import run, sentences

TEXTS = [text for text, _ in sentences(70, seed=5)]


@pytest.fixture(scope="module")
def predictor(trained: Path) -> Predictor:
    return Predictor.from_path(trained / "model.tar.gz")


def test_a_prediction_says_label_probabilities_exit_and_score(predictor: Predictor) -> None:
    result = predictor.predict_json({"id": "x7", "sentence": "the film is great", "note": 3})
    assert result["id"] == "x7" and result["sentence"] == "the film is great" and result["note"] == 3
    assert result["label"] in predictor.model.vocab.labels
    assert sum(result["probabilities"]) == pytest.approx(1)
    best = max(range(2), key=result["probabilities"].__getitem__)
    assert predictor.model.vocab.label_name(best) == result["label"]
    assert 1 <= result["exit"] <= 3 and isinstance(result["score"], float)


def test_batches_give_what_single_inputs_give(predictor: Predictor) -> None:
    inputs = [{"sentence": text} for text in TEXTS]
    together = predictor.predict_batch_json(inputs)
    assert [row["sentence"] for row in together] == TEXTS
    assert len({row["exit"] for row in together}) > 1, "the test needs samples that leave at different exits"
    for whole, single in zip(together, map(predictor.predict_json, inputs), strict=True):
        assert whole["label"] == single["label"] and whole["exit"] == single["exit"]
        assert whole["probabilities"] == pytest.approx(single["probabilities"], abs=1e-5)


def test_registered_under_both_names(trained: Path) -> None:
    archive = load_archive(trained)
    for name in ("early_exit", "beem_exit"):
        assert isinstance(Predictor.from_archive(archive, name), EarlyExitPredictor)


def test_an_input_label_is_kept_as_gold(predictor: Predictor) -> None:
    result = predictor.predict_json({"sentence": "a dull story", "label": "negative"})
    assert result["gold_label"] == "negative" and "label" in result


def test_missing_and_wrong_fields_are_named(predictor: Predictor) -> None:
    with pytest.raises(DataError, match=r"lacks \['sentence'\]; found \['text'\]"):
        predictor.predict_json({"text": "the film"})
    with pytest.raises(DataError, match="sentence: found 3"):
        predictor.predict_json({"sentence": 3})


def write_inputs(folder: Path) -> dict[str, Path]:
    """The same sentences in every format."""
    files = {name: folder / f"in.{name}" for name in ("jsonl", "csv", "tsv", "txt", "jsonl.gz")}
    lines = "".join(json.dumps({"id": row, "sentence": text}) + "\n" for row, text in enumerate(TEXTS))
    files["jsonl"].write_text(lines)
    with gzip.open(files["jsonl.gz"], "wt") as file:
        file.write(lines)
    for name, delimiter in (("csv", ","), ("tsv", "\t")):
        with open(files[name], "w", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(["id", "sentence"])
            writer.writerows(enumerate(TEXTS))
    files["txt"].write_text("\n".join(TEXTS) + "\n\n")
    return files


def test_predict_reads_every_format(trained: Path, tmp_path: Path) -> None:
    results = {}
    for name, path in write_inputs(tmp_path).items():
        output = tmp_path / f"{name}.out"
        run("predict", str(trained / "model.tar.gz"), str(path), "--output-file", str(output), "--batch-size", "8")
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        assert [row["sentence"] for row in rows] == TEXTS
        results[name] = [(row["label"], row["exit"]) for row in rows]
        assert not output.with_name(output.name + ".part").exists()
    assert len({tuple(rows) for rows in results.values()}) == 1


def test_predict_reads_standard_input_and_writes_json_lines(trained: Path) -> None:
    result = run("predict", str(trained / "model.tar.gz"), "-", stdin="the film is great\na dull story\n")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["sentence"] for row in rows] == ["the film is great", "a dull story"]
    assert all(set(row) == {"sentence", "label", "probabilities", "exit", "layer", "score"} for row in rows)


def test_a_bad_line_is_named_and_what_was_predicted_is_kept(trained: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"sentence": "the film"}\n{"sentence": "a story"}\n{"sentence": \n')
    command = ["predict", str(trained / "model.tar.gz"), str(source), "--output-file", str(output), "--batch-size", "1"]
    result = run(*command, check=False)
    assert result.returncode == 1 and "in.jsonl:3: not valid JSON" in result.stderr and "Traceback" not in result.stderr
    assert not output.exists()
    part = tmp_path / "out.jsonl.part"
    assert f"2 predictions before it are in {part}" in result.stderr
    assert [json.loads(line)["sentence"] for line in part.read_text().splitlines()] == ["the film", "a story"]


def test_an_interrupt_names_what_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for written in (0, 2):
        with pytest.raises(KeyboardInterrupt), output(str(tmp_path / "out.jsonl")) as write:
            write.file.write("{}\n" * written)
            write.written = written
            raise KeyboardInterrupt
    part = tmp_path / "out.jsonl.part"
    assert f"2 predictions are in {part}\n" in capsys.readouterr().err and part.read_text() == "{}\n{}\n"


def test_good_rows_before_a_bad_one_are_predicted(trained: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"sentence": "the film"}\n{"sentence": "\\ud83d half"}\n{"sentence": "a story"}\n')
    result = run(
        "predict", str(trained / "model.tar.gz"), str(source), "--output-file", str(output), check=False
    )  # fmt: skip
    assert "in.jsonl:2:" in result.stderr and "lone surrogate" in result.stderr
    assert len((tmp_path / "out.jsonl.part").read_text().splitlines()) == 1


def test_an_output_named_gz_is_compressed(trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "out.jsonl.gz"
    run("predict", str(trained / "model.tar.gz"), "-", "--output-file", str(output), stdin="the film\n")
    with gzip.open(output, "rt") as file:
        assert json.loads(file.read())["sentence"] == "the film"


def test_silent_without_a_file_does_nothing(trained: Path) -> None:
    result = run("predict", str(trained / "model.tar.gz"), "-", "--silent", stdin="the film\n")
    assert len(result.stdout.splitlines()) == 2


@pytest.mark.parametrize("engine", ["single", "compaction", "depth_pools"])
def test_a_stream_of_many_chunks_comes_out_in_order(trained: Path, engine: str) -> None:
    predictor = Predictor.from_path(trained, batch_size=1, engine={"type": engine})
    texts = TEXTS * 6
    rows = (TableRow(f"in:{number}", {"id": number, "sentence": text}) for number, text in enumerate(texts))
    found = [prediction for part in predictor.predict_rows(rows) for prediction in part]
    assert [prediction["id"] for prediction in found] == list(range(len(texts)))
    expected = predictor.predict_batch_json([{"sentence": text} for text in TEXTS])
    assert [(row["label"], row["exit"]) for row in found] == [(row["label"], row["exit"]) for row in expected] * 6


def test_a_stream_that_is_closed_leaves_no_thread(trained: Path) -> None:
    predictor = Predictor.from_path(trained, batch_size=1)
    stream = predictor.predict_rows(TableRow("", {"sentence": "the film"}) for _ in itertools.count())
    assert next(stream)[0]["sentence"] == "the film"
    stream.close()  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if thread.name == "read ahead":
            thread.join(timeout=30)
            assert not thread.is_alive()


def test_predictions_are_strict_json(predictor: Predictor) -> None:
    line = predictor.dump_line({"score": float("nan"), "text": "é", "values": [0.1, 1e-7, 1.0]})
    assert line == '{"score":null,"text":"é","values":[0.1,1e-7,1.0]}\n'
    strange = {"number": 10**30, "text": "half \ud83d"}
    assert json.loads(predictor.dump_line(strange)) == strange


@pytest.mark.parametrize("name, delimiter", [("o.csv", ","), ("o.tsv.gz", "\t")])
def test_a_table_holds_what_lines_hold(predictor: Predictor, tmp_path: Path, name: str, delimiter: str) -> None:
    inputs = [{"sentence": f'good, "so{delimiter}so"\n', "exit": 7, "input_exit": None}, {"sentence": "bad", "x": [1]}]
    found = predictor.predict_batch_json(inputs)
    with output(str(tmp_path / name)) as write:
        write(predictor, found[:1])
    opened: Any = gzip.open if name.endswith("gz") else open
    with opened(tmp_path / name, "rt", encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file, delimiter=delimiter)
    assert row["sentence"] == inputs[0]["sentence"] and (row["input_exit"], row["input_input_exit"]) == ("", "7")
    assert json.loads(row["probabilities"]) == found[0]["probabilities"] and row["label"] == found[0]["label"]
    assert set(row) == set(found[0])
    with pytest.raises(DataError, match="input 2 has x, allowed in a table"), output(str(tmp_path / name)) as write:
        write(predictor, found)


def test_two_writers_of_one_file_are_refused(predictor: Predictor, tmp_path: Path) -> None:
    path, found = str(tmp_path / "o.jsonl"), predictor.predict_batch_json([{"sentence": "good"}])
    with output(path) as write:
        write(predictor, found)
        with pytest.raises(ConfigurationError, match="o.jsonl: another process writes it"), output(path):
            pass
    assert json.loads(Path(path).read_text()) == found[0] and [one.name for one in tmp_path.iterdir()] == ["o.jsonl"]


def test_half_precision_changes_no_prediction_much(trained: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("\n".join(TEXTS) + "\n")
    rows = {}
    for dtype in ("float32", "bfloat16"):
        output = tmp_path / f"{dtype}.jsonl"
        run("predict", str(trained), str(source), "--output-file", str(output), "--dtype", dtype, "--silent")
        rows[dtype] = [json.loads(line) for line in output.read_text().splitlines()]
    assert rows["float32"] != rows["bfloat16"]
    same = [one["label"] == other["label"] for one, other in zip(*rows.values(), strict=True)]
    assert sum(same) > 0.9 * len(TEXTS)


def test_int8_needs_thresholds_of_its_own(trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, archive, found = tmp_path / "in.txt", tmp_path / "int8.tar.gz", {}
    source.write_text("\n".join(TEXTS) + "\n")
    model = str(trained / "model.tar.gz")
    data = ["--data", "train[holdout]", "--dtype", "int8"]
    run("calibrate", model, *data, "--policy", "max_probability", "--speedup", "1.5", "--output-archive", str(archive))
    for name, dtype in ((model, "int8"), (str(archive), "int8"), (str(archive), "float32")):
        caplog.clear()
        output = tmp_path / "out.jsonl"
        run("predict", name, str(source), "--output-file", str(output), "--dtype", dtype, "--silent")
        found[name, dtype] = [json.loads(line) for line in output.read_text().splitlines()]
        is_fitted = (name, dtype) == (str(archive), "int8")
        assert ("fit it again by `allennlp calibrate" in caplog.text) == (not is_fitted)
    own = found[str(archive), "int8"]
    assert {row["exit"] for row in own} > {1} and own != found[str(archive), "float32"]
    same = [one["label"] == other["label"] for one, other in zip(own, found[str(archive), "float32"], strict=True)]
    assert sum(same) > 0.9 * len(TEXTS)
    assert load_archive(archive).calibration.trace.meta["dtype"] == "int8"  # type: ignore[union-attr]
    refused = run("calibrate", model, "--policy", "beem", "--dtype", "int8", check=False)
    assert refused.returncode == 1 and "--dtype: found int8, allowed: with --data" in refused.stderr
