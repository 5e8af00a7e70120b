"""Where `predict` writes."""

import csv
import gzip
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, cycle, islice
from pathlib import Path
from typing import IO

from beem_plugin.common.errors import BeemError, ConfigurationError, DataError
from beem_plugin.common.files import locked, write_errors_named
from beem_plugin.common.progress import progress_bar
from beem_plugin.common.ranks import launched_rank, processes
from beem_plugin.common.strict_json import json_line
from beem_plugin.predictors.predictor import JsonDict, Predictor, chunk_sizes

PAGE_LIMIT = 500
"""Predictions drawn on a page. Browsers do not open a larger one, with its images inside."""


TABLES = {".csv": ",", ".tsv": "\t"}
"""Names of output files that are tables, and their delimiters. Any other has a JSON object a line."""


def delimiter_of(path: str | None) -> str | None:
    """The delimiter of an output file that is a table."""
    return TABLES.get(Path((path or "").lower().removesuffix(".gz")).suffix)


class Writer:
    """
    Writes predictions, a JSON object a line each or with a `delimiter` as a table with the columns of the first one,
    counts them in a progress bar, and keeps the first in `shown` if it is a list.
    """

    def __init__(self, file: IO[str], delimiter: str | None = None) -> None:
        self.file, self.delimiter = file, delimiter
        self.columns: list[str] = []
        self.bar = progress_bar(None, "predicting", unit=" inputs")
        self.written = 0
        self.exits: Counter[int] = Counter()
        self.started = time.perf_counter()
        self.shown: list[JsonDict] | None = None

    def __call__(self, predictor: Predictor, predictions: list[JsonDict]) -> None:
        if self.shown is not None:
            self.shown += predictions[: PAGE_LIMIT - len(self.shown)]
        if self.delimiter is None:
            self.file.write("".join(map(predictor.dump_line, predictions)))
        else:
            self._write_table(predictions, self.delimiter)
        self.file.flush()
        self.written += len(predictions)
        if predictions and "exit" in predictions[0]:
            self.exits.update([prediction["exit"] for prediction in predictions])
        else:  # of a caption each token has its exit
            self.exits.update(chain.from_iterable(prediction.get("exits", ()) for prediction in predictions))
        self.bar.update(len(predictions))

    def _write_table(self, predictions: list[JsonDict], delimiter: str) -> None:
        rows = csv.writer(self.file, delimiter=delimiter, lineterminator="\n")
        if not self.columns and predictions:
            self.columns = list(predictions[0])
            rows.writerow(self.columns)
        for number, prediction in enumerate(predictions, self.written + 1):
            if more := [name for name in prediction if name not in self.columns]:
                raise DataError(
                    f"--output-file: input {number} has {', '.join(more)}, allowed in a table: the columns of the "
                    "first input; a file .jsonl takes any"
                )
            rows.writerow([_cell(prediction.get(name)) for name in self.columns])

    def summary(self, exit_layers: Sequence[int]) -> str:
        """How many predictions were made, how fast, and from which exits."""
        seconds = time.perf_counter() - self.started
        text = f"{self.written} predictions in {seconds:.1f} s ({self.written / seconds:.1f} a second)"
        if len(exit_layers) < 2 or not self.exits:
            return text
        counts = [self.exits[number] for number in range(1, len(exit_layers) + 1)]
        speedup = sum(counts) * exit_layers[-1] / sum(count * layer for count, layer in zip(counts, exit_layers))
        return f"{text}; left at exit 1, 2, ...: {' '.join(map(str, counts))}; layer speed-up {speedup:.2f}x"


def _cell(value: object) -> object:
    """Texts as they are, lists and the like as JSON."""
    return "" if value is None else value if isinstance(value, str) else json_line(value).rstrip("\n")


@contextmanager
def output(path: str | None) -> Iterator[Writer]:
    """
    Standard output, or a file that is written as `path.part` and renamed when it is complete; after an interrupt or an
    error of the user's data the part stays, and is named. Devices, pipes and symbolic links are as in `atomic_write`.
    """
    if not path:
        writer = Writer(sys.stdout)
        with writer.bar:
            yield writer
        return
    target = Path(path).resolve()
    is_special = target.exists() and not target.is_file()
    part = target if is_special else Path(f"{target}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if path.endswith(".gz") else open
    with ExitStack() as held:
        try:
            if not is_special:
                part.touch()
                held.enter_context(locked(part, f"--output-file: {path}: another process writes it"))
            file = opener(part, "wt", encoding="utf-8", errors="backslashreplace", newline="\n")
        except OSError as error:
            raise ConfigurationError(f"--output-file: cannot write {path}: {error.strerror}") from None
        yield from _written(path, part, Writer(file, delimiter_of(path)))
        if not is_special:
            part.replace(target)


def _written(path: str, part: Path, writer: Writer) -> Iterator[Writer]:
    """The writer, whose file is closed behind it, and kept or deleted after an error."""
    is_special = not part.is_file()
    try:
        # Closing the file writes what is left in its buffer.
        with write_errors_named(path), writer.file, writer.bar:
            yield writer
    except (BeemError, KeyboardInterrupt) as error:
        if is_special:
            raise
        if not writer.written:
            part.unlink()
            raise
        if isinstance(error, KeyboardInterrupt):
            print(f"{writer.written} predictions are in {part}", file=sys.stderr)
            raise
        raise type(error)(f"{error} ({writer.written} predictions before it are in {part})") from None
    except OSError:
        if not is_special:
            part.unlink(missing_ok=True)
        raise


def share_path(path: str) -> str:
    """Where this process writes its share of the predictions that go to `path`; `path` itself if it is alone."""
    return path if processes() == 1 else f"{path}.{launched_rank()}"


def join_shares(path: str, batch_size: int) -> None:
    """Puts the predictions of all processes, which had the input's chunks in turns, into the order of the input."""
    shares = [Path(f"{path}.{rank}") for rank in range(processes())]
    with output(path) as write, ExitStack() as stack:
        files = [stack.enter_context(open(share, encoding="utf-8", newline="\n")) for share in shares]
        for size, file in zip(chunk_sizes(batch_size), cycle(files)):
            lines = list(islice(file, size))
            if not lines:
                break
            write.file.writelines(lines)
    for share in shares:
        share.unlink()
