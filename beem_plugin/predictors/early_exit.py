"""Text and text-pair classification and regression, each input leaving the network at its own depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.data import DatasetReader, Instance, collate
from beem_plugin.data.dataset_reader import text_value
from beem_plugin.data.ragged_batch import ragged_batches
from beem_plugin.execution import Engine
from beem_plugin.models import Model, MultiExitModel
from beem_plugin.models.answers import answers
from beem_plugin.predictors.predictor import JsonDict, Predictor


@Predictor.register("beem_exit")
@Predictor.register("early_exit")
class EarlyExitPredictor(Predictor):
    """
    Runs the model's exit policy on its engine. Each prediction holds the input's fields and

    - `label`: the label's name (an input field of that name is returned as `gold_label`),
    - `probabilities`: in the order of the vocabulary,
    - of a regression, in the place of both, `value` (an input field `label` is returned as `gold_value`),
    - `exit`: the exit at which the input left, from 1, and `layer`: the layer that it reads,
    - `score`: what the policy compared with its threshold there, if it has a score.

    Registered as a `Predictor` with names "early_exit" and "beem_exit".

    # Parameters

    model : `MultiExitModel`
    dataset_reader : `DatasetReader`
    batch_size : `int`, optional (default = `32`)
        Inputs of one call are sorted by length and run in batches of this size.
    engine : `Engine`, optional (default = the model's)
    """

    def __init__(
        self, model: Model, dataset_reader: DatasetReader, batch_size: int = 32, engine: Engine | None = None
    ) -> None:
        super().__init__(model, dataset_reader)
        if not isinstance(model, MultiExitModel):
            raise ConfigurationError(
                f"predictor early_exit: found a model {type(model).__name__}, allowed: multi_exit_classifier, "
                "multi_exit_regressor"
            )
        if batch_size < 1:
            raise ConfigurationError(f"batch size: found {batch_size}, allowed: 1 or more")
        self.classifier = model
        self.batch_size = batch_size
        self.engine = engine if engine is not None else model.engine

    def _batch_json_to_instances(self, json_dicts: Sequence[JsonDict]) -> list[Instance]:
        names = self.dataset_reader.text_fields
        texts = [{name: json_dict[name] for name in names if name in json_dict} for json_dict in json_dicts]
        for fields, json_dict in zip(texts, json_dicts, strict=True):
            check_texts(fields, names, json_dict)
        instances = self.dataset_reader.texts_to_instances(texts)
        for instance, json_dict in zip(instances, json_dicts, strict=True):
            instance.fields = dict(json_dict)
        return instances

    def predict_batch_instance(self, instances: Sequence[Instance]) -> list[JsonDict]:
        model, vocab = self.classifier, self.classifier.vocab
        pad_token_id = self.dataset_reader.tokenizer.pad_token_id
        order = sorted(range(len(instances)), key=lambda row: len(instances[row]))
        starts = range(0, len(order), self.batch_size)
        rows = [order[start : start + self.batch_size] for start in starts]
        # Labels are neither needed nor looked at: an unknown one in the input is no error.
        batches = (
            collate(
                [Instance(instances[row].fields, instances[row].encoding) for row in part], vocab, pad_token_id, part
            )
            for part in rows
        )
        results: list[JsonDict | None] = [None] * len(instances)
        ragged = ragged_batches(batches, pad_token_id)
        for executed in self.engine.run(model.encoder, model.exit_policy, ragged):
            decisions = executed.decisions
            given, exits = answers(decisions, vocab), decisions.exits.tolist()
            scores = None if decisions.scores is None else decisions.scores.tolist()
            for position, row in enumerate(executed.index.tolist()):
                results[row] = {
                    **input_fields(instances[row], "value" if vocab.is_regression else "label"),
                    **given[position],
                    "exit": exits[position],
                    "layer": model.encoder.exit_layers[exits[position] - 1],
                    **({} if scores is None else {"score": scores[position]}),
                }
        return [result for result in results if result is not None]


def check_texts(fields: JsonDict, names: Sequence[str], record: JsonDict) -> None:
    """Raises a `DataError` unless `record` has a text for each of the reader's columns."""
    missing = [name for name in names if name not in fields]
    if missing:
        raise DataError(f"the input lacks {missing}; found {sorted(record)}")
    wrong = [name for name in names if not isinstance(fields[name], str)]
    if wrong:
        raise DataError(f"{wrong[0]}: found {fields[wrong[0]]!r}, allowed: a text")
    for name in names:
        text_value(fields, name, "the input")


def input_fields(instance: Instance, answer: str = "label") -> dict[str, Any]:
    """
    What the input said, with names that the prediction needs moved out of its way; `answer` is the name of what is
    predicted.
    """
    fields = dict(instance.fields)
    if "id" not in fields and instance.id is not None:
        fields = {"id": instance.id, **fields}
    gold = fields.pop("label", instance.label)
    if gold is not None:
        fields[f"gold_{answer}"] = gold
    for name in (answer, "probabilities", "exit", "layer", "score"):
        if name in fields:
            fields[f"input_{name}"] = fields.pop(name)
    return fields
