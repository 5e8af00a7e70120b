"""`allennlp predict`: a file or a pipe through an archive."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from beem_plugin.archival import load_archive
from beem_plugin.common.errors import BeemError, ConfigurationError, DataError
from beem_plugin.common.files import atomic_write
from beem_plugin.data import Instance
from beem_plugin.data.table_file import TableRow
from beem_plugin.execution.file_engine import check_engine, file_engine
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.predictors.inputs import count_inputs, input_rows
from beem_plugin.predictors.predictor import JsonDict, Predictor

WINDOW_BATCHES = 64
"""Batches that are read, sorted by length and predicted before they are written: many, so that padding is little."""

FILE_PREDICTORS = ("early_exit", "beem_exit")
"""Predictors that take an engine, and get the one for files."""

PAGE_LIMIT = 500
"""So many predictions are drawn on a page: with its images inside, a larger one no browser opens."""


def predict_from_args(args: argparse.Namespace) -> None:
    """Runs the command; `args` as `commands/predict.py` parses them."""
    if args.silent and not args.output_file:
        print("--silent specified without --output-file.")
        print("Exiting early because no output will be created.")
        return
    if args.batch_size < 1:
        raise ConfigurationError(f"--batch-size: found {args.batch_size}, allowed: 1 or more")
    archive = load_archive(
        args.archive_file, cuda_device=args.cuda_device, overrides=args.overrides, weights_file=args.weights_file
    )
    if args.engine and not isinstance(archive.model, MultiExitModel):
        raise ConfigurationError("--engine: a captioning model decodes by itself, allowed: none")
    extra = predictor_arguments(args)
    if isinstance(archive.model, MultiExitModel) and args.predictor in (None, *FILE_PREDICTORS):
        chosen = file_engine(archive.config.as_dict(quiet=True))
        if chosen is not None:
            extra.setdefault("engine", chosen)
    predictor = Predictor.from_archive(archive, args.predictor, args.dataset_reader_choice, **extra)
    policy = getattr(archive.model, "exit_policy", None)
    if policy is not None:
        policy.check_calibrated()
    shown: list[JsonDict] | None = [] if args.html else None
    if shown is not None:
        predictor.page([])  # refused before the work, where there is no page
    with output(args.output_file) as write:
        write.shown = shown
        if args.use_dataset_reader:
            instances = predictor.dataset_reader.read(args.input_file)
            write.bar.reset(len(instances))
            for part in windows(instances, args.batch_size):
                write_parts(write, predictor, part)
        else:
            own = predictor.input_records(args.input_file)
            if own is None:
                reader = predictor.dataset_reader
                write.bar.reset(count_inputs(reader, args.input_file, args.format))
                listed: Iterable[TableRow] = input_rows(reader, args.input_file, args.format, args.input_field)
            else:
                listed = found = [TableRow("", record) for _, record in own]  # not of a file with lines
                write.bar.reset(len(found))
            for part in windows(listed, args.batch_size):
                instances, error = usable(predictor, part)
                write_parts(write, predictor, instances)
                if error is not None:
                    raise error
    if shown is not None:
        with atomic_write(args.html) as file:
            file.write(predictor.page(shown))


def predictor_arguments(args: argparse.Namespace) -> dict[str, Any]:
    try:
        extra = json.loads(args.predictor_args) if args.predictor_args else {}
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"--predictor-args: not JSON: {error}") from None
    if not isinstance(extra, dict):
        raise ConfigurationError(f"--predictor-args: found {extra!r}, allowed: a JSON object")
    extra.setdefault("batch_size", args.batch_size)
    if args.engine:
        check_engine(args.engine, "--engine")
        extra.setdefault("engine", {"type": args.engine})
    return extra


def usable(predictor: Predictor, rows: list[TableRow]) -> tuple[list[Instance], DataError | None]:
    """The instances up to the first row that cannot be used, and the error that names its place."""
    try:
        return predictor._batch_json_to_instances([row.values for row in rows]), None
    except DataError:
        instances: list[Instance] = []
        for row in rows:
            try:
                instances.append(predictor._json_to_instance(row.values))
            except DataError as error:
                return instances, DataError(f"{row.place}: {error}") if row.place else error
        raise


def windows(items: Iterable[Any], batch_size: int) -> Iterator[list[Any]]:
    """The first windows are small, so that the first predictions come soon."""
    items = iter(items)
    batches = 1
    while True:
        part: list[Any] = []
        failure: BeemError | None = None
        try:
            for item in islice(items, batches * batch_size):
                part.append(item)  # one by one: what came before an error is kept
        except BeemError as error:
            failure = error
        if part:
            yield part
        if failure is not None:
            raise failure
        if not part:
            return
        batches = min(2 * batches, WINDOW_BATCHES)


class Writer:
    """Writes predictions a line each, counts them under a bar, and keeps the first in `shown` where that is a list."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self.bar = tqdm(desc="predicting", unit=" inputs", file=sys.stderr, mininterval=0.5)
        self.written = 0
        self.shown: list[JsonDict] | None = None

    def __call__(self, predictor: Predictor, predictions: list[JsonDict]) -> None:
        if self.shown is not None:
            self.shown += predictions[: PAGE_LIMIT - len(self.shown)]
        self.file.writelines(predictor.dump_line(prediction) for prediction in predictions)
        self.file.flush()
        self.written += len(predictions)
        self.bar.update(len(predictions))


def write_parts(write: Writer, predictor: Predictor, instances: list[Instance]) -> None:
    """Each part as it comes, so that an error leaves what was predicted before it."""
    for predictions in predictor.predict_parts(instances):
        write(predictor, predictions)


@contextmanager
def output(path: str | None) -> Iterator[Writer]:
    """
    Standard output, or a file that is written as `path.part` and gets its name when it is complete. After an error the
    part stays if anything is in it: what was predicted is not lost, and the error says where it is.
    """
    if not path:
        writer = Writer(sys.stdout)
        with writer.bar:
            yield writer
        return
    part = Path(f"{path}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if path.endswith(".gz") else open
    try:
        file = opener(part, "wt", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--output-file: cannot write {path}: {error.strerror}") from None
    with file:
        writer = Writer(file)
        try:
            with writer.bar:
                yield writer
        except BeemError as error:
            if not writer.written:
                part.unlink()
                raise
            raise type(error)(f"{error} ({writer.written} predictions before it are in {part})") from None
    part.replace(path)
