"""From a JSON object to a prediction, one by one or in batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.archival import Archive, load_archive
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable
from beem_plugin.common.strict_json import json_line
from beem_plugin.data import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.models import Model

JsonDict = dict[str, Any]


class Predictor(Registrable):
    """
    # Parameters

    model : `Model`
    dataset_reader : `DatasetReader`
        Turns inputs into instances, as in training.
    """

    def __init__(self, model: Model, dataset_reader: DatasetReader) -> None:
        self.model = model
        self.dataset_reader = dataset_reader

    @classmethod
    def from_path(
        cls, archive_path: str | Path, predictor_name: str | None = None, cuda_device: int = -1, **extra: Any
    ) -> Predictor:
        """The predictor for an archive: the named one, or the one that the model asks for."""
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
        return Predictor.from_params({"type": name, **extra}, model=archive.model, dataset_reader=reader)

    def input_records(self, source: str) -> Iterator[tuple[int, JsonDict]] | None:
        """
        The numbered records of an input that is not a text file of records, as a folder of images; `None` for one that
        is.
        """
        return None

    def page(self, predictions: Sequence[JsonDict]) -> str:
        """The HTML page of `predict --html`."""
        raise ConfigurationError(f"--html: {type(self).__name__} draws no page; allowed: with a captioning model")

    def load_line(self, line: str) -> JsonDict:
        """One line of an input file."""
        return json.loads(line)

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
        """
        The same in parts, each as soon as it is there: what came before an error is kept. One part, unless a subclass
        works in smaller ones.
        """
        yield self.predict_batch_instance(instances)

    def _json_to_instance(self, json_dict: JsonDict) -> Instance:
        return self._batch_json_to_instances([json_dict])[0]

    def _batch_json_to_instances(self, json_dicts: Sequence[JsonDict]) -> list[Instance]:
        return [self.dataset_reader.text_to_instance(**json_dict) for json_dict in json_dicts]
