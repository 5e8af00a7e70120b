"""`allennlp glue-submission`: the files that gluebenchmark.com takes, from archives trained on GLUE's tasks."""

import argparse
import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.archival import Archive, load_archive
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.files import atomic_write
from beem_plugin.dataset_readers.glue import GlueReader
from beem_plugin.dataset_readers.glue_tasks import GLUE_TASKS, GlueTask
from beem_plugin.rendering.tables import Column, Table, text
from beem_plugin.tasks.task import task_of_archive

ZIP_NAME = "submission.zip"
DIAGNOSTIC = "ax"  # MNLI's further test set, which is no split of the data but a file of its own
SCORES = (0.0, 5.0)  # the range of STS-B


def glue_submission_from_args(args: argparse.Namespace) -> Table:
    """Runs the command; `args` as `commands/glue_submission.py` parses them."""
    directory = Path(args.output)
    if directory.exists() and not directory.is_dir():
        raise ConfigurationError(f"--output: {directory} is a file, allowed: a folder")
    sources: dict[str, tuple[str, str]] = {}  # of each file of the site: the archive and what its reader reads
    for path in args.archives:
        for name, source in test_sets(load_archive(path, overrides=args.overrides), path, args.ax).items():
            if name in sources:
                raise ConfigurationError(f"{path}: {name}.tsv is another archive's as well, allowed: one a task")
            sources[name] = path, source
    predicted: dict[str, list[str]] = {}
    table = Table([*text("file", "archive"), Column("rows", digits=0), Column("layer speed-up", unit="x")])
    for path in args.archives:
        archive = load_archive(path, cuda_device=args.cuda_device, overrides=args.overrides)
        for name, source in ((name, source) for name, (owner, source) in sources.items() if owner == path):
            predicted[name], speedup = predict_file(archive, source, args.batch_size)
            table.rows.append([f"{name}.tsv", path, len(predicted[name]), speedup])
    filled = write_submission(directory, predicted)
    if filled:
        table.notes.append(
            f"no archive for {', '.join(filled)}: filled with the first label, as the site wants all files"
        )
    table.notes.append(f"wrote {directory / ZIP_NAME}")
    table.print()
    return table


def test_sets(archive: Archive, path: str, diagnostic: str | None = None) -> dict[str, str]:
    """Of each test set of the archive's task, which has as many rows as GLUE's: the site's file, and the source."""
    reader = archive.validation_dataset_reader
    if not isinstance(reader, GlueReader):
        raise ConfigurationError(f"{path}: its dataset reader is {type(reader).__name__}, allowed: that of type glue")
    found = {}
    for split, (name, count) in reader.task.submission.items():
        source = diagnostic if split == DIAGNOSTIC else split
        if source is None:
            continue
        rows = len(reader.read(source))
        if rows != count:
            raise DataError(f"{path}: {source} of {reader.task_name} has {rows} rows, allowed: GLUE's {count}")
        found[name] = source
    return found


def predict_file(archive: Archive, source: str, batch_size: int | None = None) -> tuple[list[str], float]:
    """The predictions of a test set as the site wants them, and the layer speed-up."""
    reader: Any = archive.validation_dataset_reader
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "predictions.jsonl"
        metrics = task_of_archive(archive).evaluate(archive, source, batch_size, predictions_file=str(file))
        records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return written(reader.task, records), float(metrics["layer_speedup"])


def written(task: GlueTask, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Predictions as the site wants them: a label's word or number, or a score within the range."""
    if task.is_regression:
        return [f"{min(max(float(record['value']), SCORES[0]), SCORES[1]):.3f}" for record in records]
    known = {label: label if task.submits_words else str(number) for number, label in enumerate(task.label_names)}
    return [known[record["label"]] for record in records]


def write_submission(directory: Path, predicted: Mapping[str, Sequence[str]]) -> list[str]:
    """Writes all files and their zip; returns the names of those that nothing was predicted for."""
    directory.mkdir(parents=True, exist_ok=True)
    filled = []
    with zipfile.ZipFile(directory / ZIP_NAME, "w", zipfile.ZIP_DEFLATED) as archive:
        files = [(task, *entry) for task in GLUE_TASKS.values() for entry in task.submission.values()]
        for task, name, count in files:
            rows = predicted.get(name)
            if rows is None:
                filled.append(f"{name}.tsv")
                first = {"value": SCORES[0]} if task.is_regression else {"label": task.label_names[0]}
                rows = written(task, [first]) * count
            with atomic_write(directory / f"{name}.tsv") as file:
                file.write("index\tprediction\n" + "".join(f"{index}\t{row}\n" for index, row in enumerate(rows)))
            archive.write(directory / f"{name}.tsv", f"{name}.tsv")
    return filled
