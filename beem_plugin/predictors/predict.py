"""`allennlp predict`: a file or a pipe through an archive."""

import argparse
import gc
import sys
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from beem_plugin.archival import archive_of
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.files import atomic_write
from beem_plugin.common.ranks import gathered, is_main, joined, launched_processes, processes
from beem_plugin.common.strict_json import parse_json
from beem_plugin.common.text_input import open_bytes
from beem_plugin.data.dataset_reader import DatasetReader, missing_column
from beem_plugin.data.table_file import TableRow
from beem_plugin.execution.engine import FILE_ENGINE, check_engine, engine_block
from beem_plugin.execution.precision import cast_network
from beem_plugin.models.model import Model
from beem_plugin.predictors.data_shift import ShiftCheck
from beem_plugin.predictors.output import delimiter_of, join_shares, output, share_path
from beem_plugin.predictors.predictor import JsonDict, Predictor, check_precision
from beem_plugin.tasks.task import task_of

FILE_PREDICTORS = ("early_exit", "beem_exit")
"""Predictors that take an engine, and get the one for files."""


def predict_from_args(args: argparse.Namespace) -> None:
    """Runs the command; `args` as `commands/predict.py` parses them."""
    if args.silent and not args.output_file:
        print("--silent specified without --output-file.")
        print("Exiting early because no output will be created.")
        return
    is_one_file = args.input_file != "-" and args.output_file and not args.html and not delimiter_of(args.output_file)
    if launched_processes() > 1 and not is_one_file:
        raise ConfigurationError(
            f"found {launched_processes()} processes of a launcher, allowed with them: an input file, --output-file "
            "with JSON lines, and no --html"
        )
    with joined():
        predict(args)


def predict(args: argparse.Namespace) -> None:
    """Predicts this process's share of the input."""
    archive = archive_of(args)
    if args.engine and not task_of(archive.model).uses_engines:
        raise ConfigurationError("--engine: a captioning model decodes by itself, allowed: none")
    if task_of(archive.model).uses_engines:
        cast_network(archive.model.exit_network, args.dtype)
        check_precision(archive)
    elif args.dtype != "float32":
        raise ConfigurationError(f"--dtype: found {args.dtype} for a captioning model, allowed: float32")
    extra = predictor_arguments(args)
    if task_of(archive.model).uses_engines and args.predictor in (None, *FILE_PREDICTORS):
        extra.setdefault("engine", engine_block(archive.config.as_dict(quiet=True), FILE_ENGINE))
    predictor = Predictor.from_archive(archive, args.predictor, args.dataset_reader_choice, **extra)
    policy = getattr(archive.model, "exit_policy", None)
    if policy is not None:
        policy.check_calibrated()
    shown: list[JsonDict] | None = [] if args.html else None
    if shown is not None:
        predictor.page([])  # raises at once for a predictor without pages
    check = ShiftCheck.of(archive)
    gc.freeze()  # the collector would traverse the libraries' objects again and again while inputs come and go
    with (
        output(args.output_file and share_path(args.output_file)) as write,
        closing(predictions(args, predictor, write.bar)) as parts,
    ):
        write.shown = shown
        for part in parts:
            write(predictor, part)
            if check is not None:
                check.add(part)
    write.written, write.exits = sum(gathered([write.written])), sum(gathered([write.exits]), Counter())
    if check is not None:
        check.found = np.sum(gathered([check.found]), axis=0)
    if not is_main():
        return
    if processes() > 1:
        join_shares(args.output_file, args.batch_size)
    lines = [write.summary(exit_layers_of(archive.model)), task_of(archive.model).legend(archive.model)]
    lines += [] if check is None else [check.warning()]
    lines += [] if policy is None else [policy.summary()]
    print("\n".join(filter(None, lines)), file=sys.stderr)
    if shown is not None:
        with atomic_write(args.html) as file:
            file.write(predictor.page(shown))


def exit_layers_of(model: Model) -> list[int]:
    """The layers of the model's exits; none of a model without exits of whole samples."""
    if type(model).exit_network is Model.exit_network or getattr(model.exit_network, "tokens_leave", False):
        return []
    return list(model.exit_network.exit_layers)


def predictions(args: argparse.Namespace, predictor: Predictor, bar: tqdm) -> Generator[list[JsonDict], None, None]:
    """All predictions, in parts; `bar` is told how many inputs there are where that is known."""
    if args.use_dataset_reader:
        instances = predictor.dataset_reader.read(args.input_file)
        bar.reset(len(instances))
        yield from predictor.predict_instances(instances)
        return
    own = predictor.input_records(args.input_file)
    if own is None:
        reader = predictor.dataset_reader
        bar.reset(count_lines(reader, args.input_file, args.format))
        yield from predictor.predict_rows(input_rows(reader, args.input_file, args.format, args.input_field))
        return
    bar.reset(len(own))
    yield from predictor.predict_rows(TableRow("", record) for record in own)  # not of a file with lines


def predictor_arguments(args: argparse.Namespace) -> dict[str, Any]:
    extra = parse_json(args.predictor_args, "--predictor-args") if args.predictor_args else {}
    if not isinstance(extra, dict):
        raise ConfigurationError(f"--predictor-args: found {extra!r}, allowed: a JSON object")
    extra.setdefault("batch_size", args.batch_size)
    if args.engine:
        check_engine(args.engine, "--engine")
        extra.setdefault("engine", {"type": args.engine})
    return extra


_BLOCK = 1 << 20


def input_rows(
    reader: DatasetReader, source: str, format: str | None = None, input_field: str | None = None
) -> Iterator[TableRow]:
    """The rows of a file or of standard input (`-`) as a stream; `input_field` is the column that the reader reads."""
    if input_field is None:
        yield from reader.rows(source, format)
        return
    if len(reader.text_fields) != 1:
        raise ConfigurationError(
            f"--input-field: found the reader's text columns {', '.join(reader.text_fields)}, allowed: with one"
        )
    (name,) = reader.text_fields
    for row in reader.rows(source, format):
        # A line of plain text is the reader's column already.
        if input_field not in row.values and list(row.values) != [name]:
            raise DataError(missing_column(row.values, input_field, row.place, use=" (--input-field)"))
        values = {name if key == input_field else key: value for key, value in row.values.items()}
        yield TableRow(row.place, values)


def count_lines(reader: DatasetReader, source: str, format: str | None = None) -> int | None:
    """The number of lines of a file without its header, for a progress bar; `None` for standard input."""
    if not Path(source).is_file():
        return None
    table = reader.table.given(format)
    has_header = table.of(source) in ("csv", "tsv") and table.columns is None
    try:
        with open_bytes(source) as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b"")) - has_header
    except (DataError, OSError, EOFError, zlib.error):  # reported when it is read
        return None
