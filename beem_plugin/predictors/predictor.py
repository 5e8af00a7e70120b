"""From JSON objects to predictions: one, a batch, or a stream."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from beem_plugin.archival import Archive, load_archive
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import BeemError, ConfigurationError, DataError
from beem_plugin.common.ranks import share
from beem_plugin.common.registry import Registrable
from beem_plugin.common.strict_json import json_line
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.data.table_file import TableRow
from beem_plugin.execution.precision import INT8, dtype_of
from beem_plugin.models.model import Model

Item = TypeVar("Item")

BATCHES_PER_CHUNK = 64
"""Many, so that the tokenizer keeps all cores busy and the engine has similar lengths to put together."""


def chunks(items: Iterable[Item], batch_size: int) -> Iterator[list[Item]]:
    """Small chunks first, so that predictions come soon; the items before an error form a chunk of their own."""
    items = iter(items)
    for size in chunk_sizes(batch_size):
        part: list[Item] = []
        try:
            for item in islice(items, size):
                part.append(item)
        except BeemError:
            if part:
                yield part
            raise
        if not part:
            return
        yield part


def chunk_sizes(batch_size: int) -> Iterator[int]:
    """Of all chunks but the last, which is smaller."""
    batches = 1
    while True:
        yield batches * batch_size
        batches = min(2 * batches, BATCHES_PER_CHUNK)


class UntilError(Iterable[Item]):
    """Iterates over `items` up to an error of the user's data, which `raise_error` raises later."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = items
        self._error: BeemError | None = None

    def __iter__(self) -> Iterator[Item]:
        try:
            yield from self._items
        except BeemError as error:
            self._error = error

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error


logger = logging.getLogger(__name__)

JsonDict = dict[str, Any]


def check_precision(archive: Archive) -> None:
    """Warns if thresholds were fitted on outputs of a model that was quantized otherwise than this one."""
    trace = None if archive.calibration is None else archive.calibration.trace
    found = dtype_of(archive.model.exit_network)
    fitted = found if trace is None else str(trace.meta.get("dtype", "float32"))
    if found != fitted and INT8 in (found, fitted):
        logger.warning(
            "the exit policy was calibrated in %s, and the layers compute in %s: fit it again by `allennlp calibrate "
            "ARCHIVE --data DATA --policy P --dtype %s --output-archive NEW.tar.gz`",
            fitted,
            found,
            found,
        )


class Predictor(Registrable):
    """
    # Parameters

    model : `Model`
    dataset_reader : `DatasetReader`
        Turns inputs into instances, as in training.
    """

    batch_size: int = 32
    calibration_trace: ExitTrace | None = None
    """Of the archive that the predictor was made from."""

    def __init__(self, model: Model, dataset_reader: DatasetReader) -> None:
        self.model = model
        self.dataset_reader = dataset_reader

    @classmethod
    def from_path(
        cls, archive_path: str | Path, predictor_name: str | None = None, cuda_device: int = -1, **extra: Any
    ) -> Predictor:
        """The predictor for an archive: the named one, or the model's default."""
        return cls.from_archive(load_archive(archive_path, cuda_device=cuda_device), predictor_name, **extra)

    @classmethod
    def from_archive(
        cls,
        archive: Archive,
        predictor_name: str | None = None,
        dataset_reader_to_load: str = "validation",
        **extra: Any,
    ) -> Predictor:
        """As `from_path`, for an archive that is loaded already; `extra` goes to the predictor's constructor."""
        name = predictor_name or archive.model.default_predictor or "early_exit"
        reader = archive.dataset_reader if dataset_reader_to_load == "train" else archive.validation_dataset_reader
        found = Predictor.from_params({"type": name, **extra}, model=archive.model, dataset_reader=reader)
        found.calibration_trace = None if archive.calibration is None else archive.calibration.trace
        return found

    def input_records(self, source: str) -> list[JsonDict] | None:
        """The records of an input that is not a text file, as a folder of images; `None` for a text file."""
        return None

    def page(self, predictions: Sequence[JsonDict]) -> str:
        """The HTML page of `predict --html`."""
        raise ConfigurationError(
            f"--html: {type(self).__name__} draws no page; allowed: with a model of texts or captions"
        )

    def dump_line(self, outputs: JsonDict) -> str:
        """One line of an output file, newline included."""
        return json_line(outputs)

    def predict_json(self, inputs: JsonDict) -> JsonDict:
        return self.predict_batch_json([inputs])[0]

    def predict_batch_json(self, inputs: Sequence[JsonDict]) -> list[JsonDict]:
        """In the order of `inputs`."""
        return self.predict_batch_instance(self._batch_json_to_instances(inputs))

    def predict_instance(self, instance: Instance) -> JsonDict:
        return self.predict_batch_instance([instance])[0]

    def predict_batch_instance(self, instances: Sequence[Instance]) -> list[JsonDict]:
        """In the order of `instances`."""
        raise TypeError(f"{type(self).__name__} does not define predict_batch_instance")

    def predict_parts(self, instances: Sequence[Instance]) -> Iterator[list[JsonDict]]:
        """`predict_batch_instance` in parts, each as soon as it is done; here one."""
        yield self.predict_batch_instance(instances)

    def predict_rows(self, rows: Iterable[TableRow]) -> Iterator[list[JsonDict]]:
        """Predictions of a stream of inputs, in parts and in order; a `DataError` comes after those before it."""
        parts = (self.instances_of(part, tokenized=False) for part in share(chunks(rows, self.batch_size)))
        return self._predict_chunks(chain.from_iterable(parts))

    def predict_instances(self, instances: Iterable[Instance]) -> Iterator[list[JsonDict]]:
        """`predict_rows` for instances that are tokenized already."""
        return self._predict_chunks(share(chunks(instances, self.batch_size)))

    def _predict_chunks(self, parts: Iterable[Sequence[Instance]]) -> Iterator[list[JsonDict]]:
        for instances in parts:
            yield from self.predict_parts(instances)

    def instances_of(self, rows: Sequence[TableRow], tokenized: bool = True) -> Iterator[Sequence[Instance]]:
        """The instances of `rows` up to the first that cannot be used, then the error that names its place."""
        make = self._batch_json_to_instances if tokenized else self._untokenized
        try:
            yield make([row.values for row in rows])
        except DataError:
            good: list[Instance] = []
            for row in rows:
                try:
                    good += self._batch_json_to_instances([row.values])
                except DataError as error:
                    if good:
                        yield good
                    raise DataError(f"{row.place}: {error}" if row.place else str(error)) from None
            raise

    def _untokenized(self, json_dicts: Sequence[JsonDict]) -> Sequence[Instance]:
        """`_batch_json_to_instances` for a predictor that tokenizes later."""
        return self._batch_json_to_instances(json_dicts)

    def _batch_json_to_instances(self, json_dicts: Sequence[JsonDict]) -> Sequence[Instance]:
        return [self.dataset_reader.text_to_instance(**json_dict) for json_dict in json_dicts]
