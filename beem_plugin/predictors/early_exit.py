"""Text and text-pair classification and regression with early exit."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.common.errors import check_at_least
from beem_plugin.data.collate import ragged
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.data.ragged_batch import RaggedBatch
from beem_plugin.execution.engine import Engine, run_in_order
from beem_plugin.execution.read_ahead import ahead
from beem_plugin.models.model import Model
from beem_plugin.predictors.inputs import input_fields, texts_of
from beem_plugin.predictors.predictor import JsonDict, Predictor, UntilError
from beem_plugin.predictors.text_page import TextPage
from beem_plugin.tasks.classification import text_model
from beem_plugin.tasks.task import task_of

QUEUED = 2
"""Chunks that wait between two stages."""

CHUNKS_ALONE = 6
"""The first chunks, which are small, do not wait for an engine that gathers large windows."""

Samples = tuple[list[JsonDict], RaggedBatch]


@Predictor.register("beem_exit")
@Predictor.register("early_exit")
class EarlyExitPredictor(Predictor):
    """
    Runs the model's exit policy on its engine. Each prediction holds the input's fields and

    - `label`: the label's name (an input field of that name is returned as `gold_label`),
    - `probabilities`: in the order of the vocabulary,
    - in the place of both, for regression `value` (an input field `label` is returned as `gold_value`), and for words
      `tags`,
    - `exit`: the number of the exit, from 1, and `layer`: the layer that it reads,
    - `score`: what the policy compared with its threshold there, if it has a score.

    Registered as a `Predictor` with names "early_exit" and "beem_exit".

    # Parameters

    model : `MultiExitModel`
    dataset_reader : `DatasetReader`
    batch_size : `int`, optional (default = `32`)
        A stream is read and tokenized in chunks of 64 times this size; the engine divides and sorts them.
    engine : `Engine`, optional (default = the model's)
    """

    def __init__(
        self, model: Model, dataset_reader: DatasetReader, batch_size: int = 32, engine: Engine | None = None
    ) -> None:
        super().__init__(model, dataset_reader)
        check_at_least(1, **{"batch size": batch_size})
        self.classifier = text_model(model)
        self.task: Any = task_of(model)
        self.batch_size = batch_size
        self.engine = engine if engine is not None else self.classifier.engine

    def _batch_json_to_instances(self, json_dicts: Sequence[JsonDict]) -> Sequence[Instance]:
        return self._instances(json_dicts, self.dataset_reader.texts_to_instances)

    def _untokenized(self, json_dicts: Sequence[JsonDict]) -> Sequence[Instance]:
        return self._instances(json_dicts, self.dataset_reader.untokenized)

    def _instances(
        self, json_dicts: Sequence[JsonDict], make: Callable[[Sequence[JsonDict]], list[Instance]]
    ) -> list[Instance]:
        """What `make` makes of the texts, with all fields of the inputs."""
        names, types = self.dataset_reader.text_fields, self.dataset_reader.text_types
        instances = make([texts_of(json_dict, names, types) for json_dict in json_dicts])
        for instance, json_dict in zip(instances, json_dicts, strict=True):
            instance.fields = json_dict
        return instances

    @cached_property
    def text_page(self) -> TextPage:
        return TextPage(self.classifier, self.dataset_reader, self.calibration_trace)

    def page(self, predictions: Sequence[JsonDict]) -> str:
        names, answer = self.dataset_reader.text_fields, f"gold_{self.task.answer}"
        rows = [{name: one.get(name, one.get(f"input_{name}")) for name in names} for one in predictions]
        gold = [None if one.get(answer) is None else str(one[answer]) for one in predictions]
        instances = self._batch_json_to_instances(rows) if rows else []
        return self.text_page.html(self.text_page.entries(instances, gold))

    def predict_batch_instance(self, instances: Sequence[Instance]) -> list[JsonDict]:
        samples = [self._samples(instances, 0)] if len(instances) else []
        return [prediction for part in self._run(samples) for prediction in part]

    def _predict_chunks(self, parts: Iterable[Sequence[Instance]]) -> Iterator[list[JsonDict]]:
        """A pipeline of threads with bounded queues: one each for reading, tokenizing, the engine, and the caller's."""
        stopped = threading.Event()
        interval = sys.getswitchinterval()
        # Threads that wait for the interpreter get it after this time; by default the engine would wait 5 ms a call.
        sys.setswitchinterval(0.0005)
        try:
            read = ahead(parts, QUEUED, stopped)
            tokenized = UntilError(self._tokenized(read))
            yield from self._run(ahead(tokenized, QUEUED, stopped), stopped)
            tokenized.raise_error()
        finally:
            stopped.set()
            sys.setswitchinterval(interval)

    def _tokenized(self, parts: Iterable[Sequence[Instance]]) -> Iterator[Samples]:
        position = 0
        for instances in parts:
            yield self._samples(instances, position)
            position += len(instances)

    def _samples(self, instances: Sequence[Instance], position: int) -> Samples:
        """The fields of each prediction that come from its input, and the tokens of all."""
        fields = [input_fields(instance, self.task.answer) for instance in instances]
        if instances[0].encoding:
            return fields, ragged(instances, self.dataset_reader.tokenizer.pad_token_id, position)
        return fields, self.dataset_reader.encode(instances, position)

    def _run(self, samples: Iterable[Samples], stopped: threading.Event | None = None) -> Iterator[list[JsonDict]]:
        """The predictions of each part; the engine runs in a thread of its own that `stopped` ends, if it is given."""
        model = self.classifier
        waiting: deque[list[JsonDict]] = deque()

        def batches() -> Iterator[RaggedBatch]:
            for fields, batch in samples:
                waiting.append(fields)
                yield batch

        def decisions() -> Iterator[ExitDecisions]:
            stream = batches()
            for batch in islice(stream, CHUNKS_ALONE):
                yield from run_in_order(self.engine, model.encoder, model.exit_policy, [batch])
            for batch in islice(stream, 1):  # if there is more, the engine is prepared once more
                rest = chain([batch], stream)
                yield from run_in_order(self.engine, model.encoder, model.exit_policy, rest)

        decided = decisions()
        for part in decided if stopped is None else ahead(decided, QUEUED, stopped):
            yield self._predictions(waiting.popleft(), part)

    def _predictions(self, fields: list[JsonDict], decisions: ExitDecisions) -> list[JsonDict]:
        layers = self.classifier.encoder.exit_layers
        exits = decisions.exits.tolist()
        found = [
            {**given, **answer, "exit": number, "layer": layers[number - 1]}
            for given, answer, number in zip(
                fields, self.task.records(self.classifier, decisions, fields), exits, strict=True
            )
        ]
        if decisions.scores is not None:
            for prediction, score in zip(found, decisions.scores.tolist(), strict=True):
                prediction["score"] = score
        return found
