#!/usr/bin/env python3
"""
Runs a folder that `allennlp export` wrote, which also wrote this file. It needs numpy, onnxruntime and tokenizers:

    python runner.py texts.txt                # a text a line, the texts of a pair separated by tabs
    python runner.py table.csv                # or .tsv, .jsonl: with the columns in export.json
    >>> from runner import Runner
    >>> Runner(folder).predict(["A film that is worth every minute."])

Each segment computes the layers up to the next exit; then the policy's graph decides who leaves, and the others go on.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

if TYPE_CHECKING:
    import onnxruntime

META_NAME = "export.json"
FORMAT = 2
BATCHES = 8
"""Batches that are sorted by length together."""


@dataclass
class Decisions:
    """
    Exits from 1, `(samples,)` int64; scores, `(samples,)` float64; and outputs, `(samples, labels)` float64
    log-probabilities, of a regression `(samples, 1)`, the values.
    """

    exits: np.ndarray
    scores: np.ndarray
    outputs: np.ndarray


class Runner:
    """
    # Parameters

    folder : `str | Path`, optional (default = this file's)
    threads : `int`, optional (default = onnxruntime's)
        For one layer's work.
    """

    def __init__(self, folder: str | Path | None = None, threads: int | None = None) -> None:
        self.folder = Path(__file__).parent if folder is None else Path(folder)
        path = self.folder / META_NAME
        if not path.is_file():
            raise FileNotFoundError(f"{self.folder}: found no {META_NAME}, allowed: a folder of `allennlp export`")
        self.meta: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if self.meta["format"] != FORMAT:
            raise ValueError(f"{path}: found format {self.meta['format']}, allowed: {FORMAT}; export the archive again")
        self.steps = [
            (one["exit"], open_graph(self.folder / one["graph"], threads), open_graph(self.folder / one["policy"], 1))
            for one in self.meta["segments"]
        ]
        self.depth = self.meta["exit_layers"][-1]
        self._tokenizer: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer" / "tokenizer.json"))
            self._tokenizer.no_padding()
            if self.meta["max_length"] is None:
                self._tokenizer.no_truncation()
            else:
                self._tokenizer.enable_truncation(self.meta["max_length"], strategy="longest_first")
        return self._tokenizer

    def predict(self, texts: Iterable[Any], batch_size: int = 32) -> list[dict[str, Any]]:
        """
        Predictions as `allennlp predict` gives them: `label` and `probabilities` (of a regression `value`), `exit`,
        `layer`, and `score` if the policy has one.

        # Parameters

        texts : `Iterable[str | Sequence[str] | Mapping[str, str]]`
            Texts, pairs, or objects with the columns in `export.json`.
        batch_size : `int`, optional (default = `32`)
        """
        names = self.meta["text_fields"]
        rows = [self._texts(text, names) for text in texts]
        inputs = [row[0] for row in rows] if len(names) == 1 else rows
        samples = [(one.ids, one.type_ids) for one in self.tokenizer.encode_batch(inputs)]
        found = self.run([ids for ids, _ in samples], [types for _, types in samples], batch_size)
        return [self._prediction(found, row) for row in range(len(rows))]

    def run(
        self, input_ids: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]] | None, batch_size: int = 32
    ) -> Decisions:
        """Token ids, without padding, to exits and outputs in their order."""
        count = len(input_ids)
        found = Decisions(np.zeros(count, np.int64), np.zeros(count), np.zeros((count, self.meta["num_labels"])))
        order = sorted(range(count), key=lambda row: len(input_ids[row]))
        for start in range(0, count, batch_size):
            rows = np.array(order[start : start + batch_size])
            tokens = padded([input_ids[row] for row in rows], self.meta["pad_token_id"])
            given = {"input_ids": tokens, "attention_mask": padded([[1] * len(input_ids[row]) for row in rows], 0)}
            if self.meta["token_types"]:
                types = [[0] * len(input_ids[row]) if token_type_ids is None else token_type_ids[row] for row in rows]
                given["token_type_ids"] = padded(types, 0)
            self._run_batch(rows, given, found)
        return found

    def _run_batch(self, rows: np.ndarray, given: dict[str, np.ndarray], found: Decisions) -> None:
        most = self.meta["max_tokens"]
        longest = given["input_ids"].shape[1]
        if most is not None and longest > most:
            raise ValueError(f"input_ids: found {longest} tokens, allowed: up to {most}")
        state: dict[str, np.ndarray] = {}
        for number, segment, policy in self.steps:
            hidden, *signals = run_session(segment, given)
            read = dict(zip(["logits", *self.meta["signals"]], signals))
            exits, score, output, *states = run_session(policy, {**read, **state})
            left = rows[exits]
            found.exits[left], found.scores[left], found.outputs[left] = number, score[exits], output[exits]
            stay = ~exits
            if not stay.any():
                return
            rows, mask = rows[stay], given["attention_mask"][stay]
            longest = int(mask.sum(1).max())
            given = {"hidden_states": hidden[stay][:, :longest], "attention_mask": mask[:, :longest]}
            names = [one.name.removeprefix("next_") for one in policy.get_outputs()[3:]]
            state = {name: value[stay] for name, value in zip(names, states)}

    def _texts(self, text: Any, names: Sequence[str]) -> tuple[str, ...]:
        if isinstance(text, Mapping):
            text = [text.get(name) for name in names]
        texts = (text,) if isinstance(text, str) else tuple(text)
        if len(texts) != len(names) or not all(isinstance(one, str) for one in texts):
            raise ValueError(f"found the input {text!r}, allowed: {len(names)} text(s) ({', '.join(names)})")
        return texts

    def _prediction(self, found: Decisions, row: int) -> dict[str, Any]:
        output, labels, number = found.outputs[row], self.meta["labels"], int(found.exits[row])
        if len(output) == 1:
            prediction: dict[str, Any] = {"value": float(output[0])}
        else:
            chances = np.exp(output).tolist()
            prediction = {"label": labels[int(output.argmax())], "probabilities": dict(zip(labels, chances))}
        prediction |= {"exit": number, "layer": self.meta["exit_layers"][number - 1]}
        return prediction | ({"score": float(found.scores[row])} if self.meta["has_score"] else {})


def open_graph(path: Path, threads: int | None = None) -> onnxruntime.InferenceSession:
    import onnxruntime  # the package has this module too, and works without

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    # Every session has threads of its own: those of the segment before must not spin while the next one runs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_session(session: onnxruntime.InferenceSession, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a graph, which may not take all of `given`."""
    return list(session.run(None, {one.name: given[one.name] for one in session.get_inputs()}))


def padded(rows: Sequence[Sequence[int]], value: int) -> np.ndarray:
    """`(samples, longest)` int64."""
    found = np.full((len(rows), max(map(len, rows))), value, np.int64)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found


def read_records(
    lines: Iterable[str], names: Sequence[str], suffix: str = "", table: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[dict[str, Any]]:
    """Rows of a table, with the settings of `export.json`; else JSON, or lines of text, columns separated by tabs."""
    kind = table.get("format") or suffix[1:]
    is_table = kind in ("csv", "tsv") or (table.get("delimiter") and kind != "jsonl")
    records = table_rows(iter(lines), kind, table) if is_table else parsed(iter(lines), names)
    for number, record in enumerate(records, 1):
        record = record if isinstance(record, dict) else {}
        missing = [name for name in names if not isinstance(record.get(name), str)]
        if missing or None in record or (is_table and None in record.values()):
            raise ValueError(f"input {number}: lacks {missing}, or has cells without a column; found {list(record)}")
        yield record


def table_rows(lines: Iterator[str], kind: str, table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Strictly: quotation marks that can be read in two ways are an error."""
    csv.field_size_limit(2**31 - 1)
    first, quoting, columns = next(lines, ""), table.get("quoting"), table.get("columns")
    if kind == "tsv" and quoting is None and first.startswith('"'):
        raise ValueError("found a quoted header, allowed: TSV without quotation marks, or dataset_reader.quoting true")
    best = max(",;\t", key=("" if columns else re.sub('"[^"]*"', "", first)).count)
    mark = table.get("delimiter") or ("\t" if kind == "tsv" else best)
    marks: Any = csv.QUOTE_NONE if quoting is False or (quoting is None and kind == "tsv") else csv.QUOTE_MINIMAL
    rows = csv.DictReader(chain([first], lines), columns, delimiter=mark, quoting=marks, strict=True)
    rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
    return rows


def parsed(lines: Iterator[str], names: Sequence[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        begin, text = line.lstrip()[:1], line.rstrip("\r\n")
        if begin in ("{", "["):
            try:
                yield from json.loads("".join([line, *lines])) if begin == "[" else [json.loads(line)]
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number}: not valid JSON: {error.msg}") from None
        elif begin:
            yield dict(zip(names, text.split("\t") if len(names) > 1 else [text]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict the texts of a file, or of standard input, as JSON lines.")
    parser.add_argument("file", nargs="?", default="-")
    parser.add_argument("--folder", help="the export; default: the folder of this file")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    try:
        runner = Runner(args.folder, args.threads)
        table = runner.meta.get("table", {})
        encoding = table.get("encoding", "utf-8").replace("utf-8", "utf-8-sig")
        with nullcontext(sys.stdin) if args.file == "-" else open(args.file, encoding=encoding, newline="") as lines:
            records = read_records(lines, runner.meta["text_fields"], Path(args.file).suffix.lower(), table)
            while part := list(islice(records, BATCHES * args.batch_size)):
                for record, prediction in zip(part, runner.predict(part, args.batch_size)):
                    answer = "label" if "label" in prediction else "value"
                    renamed = {**{name: f"input_{name}" for name in prediction}, "label": f"gold_{answer}"}
                    given = {renamed.get(name, name): value for name, value in record.items()}
                    print(json.dumps({**given, **prediction}, ensure_ascii=False))
    except (OSError, ValueError, csv.Error) as error:
        raise SystemExit(f"error: {'' if isinstance(error, OSError) else f'{args.file}: '}{error}") from None


if __name__ == "__main__":
    main()
