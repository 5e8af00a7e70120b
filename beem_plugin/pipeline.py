"""The Python interface: a trained model as an object that is called with texts. Use it through `beem_plugin.load`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from beem_plugin.archival import Archive, load_archive
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import DataError
from beem_plugin.comparison.calibrate import at_speed, policy_config, with_policy
from beem_plugin.data.hub import archive_path
from beem_plugin.data.table_file import TableRow
from beem_plugin.evaluation.benchmark import benchmark
from beem_plugin.execution.engine import REQUEST_ENGINE, engine_block
from beem_plugin.execution.precision import cast_network
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.predictors.inputs import Text, column_rows, inputs_of, labelled_instances, row_of
from beem_plugin.predictors.predictor import Predictor, check_precision
from beem_plugin.publish import push_to_hub, save_pretrained
from beem_plugin.tasks.classification import text_model
from beem_plugin.tasks.task import BenchmarkOptions, evaluation_loader, task_of_archive


class EarlyExitPipeline:
    """
    A trained model of texts with its tokenizer, exit policy and calibration. Calls from several threads do not block
    each other: each has an engine of its own. Weights are shared by the
    objects that `with_policy` and `calibrate` return. A pipeline can be pickled.

    # Parameters

    archive : `Archive`
    batch_size : `int`, optional (default = `32`)
        As of `allennlp predict`.
    engine : `str`, optional (default = the model's, or `"auto"`)
    dtype : `str`, optional (default = `"float32"`)
        Of the layers: also `"bfloat16"`, `"float16"`, or on the CPU `"int8"`, with thresholds of its own.
    """

    def __init__(
        self, archive: Archive, batch_size: int = 32, engine: str | None = None, dtype: str = "float32"
    ) -> None:
        cast_network(text_model(archive.model).encoder, dtype)
        check_precision(archive)
        self.archive = archive
        self.batch_size = batch_size
        self.engine = {"type": engine} if engine else engine_block(archive.config.as_dict(quiet=True), REQUEST_ENGINE)
        self.dtype = dtype
        self._start()

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        cuda_device: int = -1,
        overrides: str | dict[str, Any] = "",
        revision: str | None = None,
        **options: Any,
    ) -> EarlyExitPipeline:
        """
        # Parameters

        path : `str | Path`
            A `model.tar.gz`, the folder of a training run or of `save_pretrained`, or `owner/name` in the hub.
        cuda_device : `int`, optional (default = `-1`, the CPU)
        overrides : `str | dict`, optional
            Changes to the archived config, as `-o` of the commands.
        revision : `str`, optional (default = the main branch in the hub)
        options : `Any`
            `batch_size`, `engine`, `dtype`: see the class.
        """
        return cls(load_archive(archive_path(path, revision), cuda_device, overrides), **options)

    @property
    def model(self) -> MultiExitModel:
        return text_model(self.archive.model)

    @property
    def policy(self) -> dict[str, Any]:
        """The exit policy as a config, with all its numbers."""
        return self.model.exit_policy.to_config()

    @property
    def labels(self) -> list[str]:
        """The names of the labels; empty for a regression."""
        return list(self.model.vocab.labels)

    def __call__(self, inputs: Any) -> Any:
        """
        Predicts one input, or many in batches. Each prediction holds `label` (of a regression `value`),
        `probabilities` by name of the label, `exit` (from 1), `layer`, and `score` if the policy has one.

        # Parameters

        inputs : `str`, `tuple[str, str]`, or several
            A text, a pair, or for taggers `{"words": ["John", "lives"]}`: returns a prediction. A list, an array, a
            frame with the text columns, a column: returns a list. A generator: returns a generator, which reads ahead.
            A mapping of text columns to lists, as `datasets.map(..., batched=True)` gives: returns one.
        """
        if isinstance(inputs, str | tuple):
            return self._one(inputs)
        if isinstance(inputs, Mapping):
            reader = self.archive.validation_dataset_reader
            rows = column_rows(inputs, reader.text_fields, reader.text_types)
            if rows is None:
                return self._one({name: inputs[name] for name in reader.text_fields if name in inputs})
            found = list(self._predict(rows))
            return {key: [one[key] for one in found] for key in (found[0] if found else ())}
        if not isinstance(inputs, Iterable) or isinstance(inputs, bytes):
            raise DataError(f"found an input of type {type(inputs).__name__}, allowed: a text, or an iterable of texts")
        stream = self._predict(inputs)
        return list(stream) if hasattr(inputs, "__len__") else stream

    def with_policy(
        self, policy: str | dict[str, Any] | None = None, speedup: float | None = None, trace: ExitTrace | None = None
    ) -> EarlyExitPipeline:
        """
        A pipeline with the same weights under another exit policy, fitted on a trace.

        # Parameters

        policy : `str | dict`, optional (default = the present rule, with its numbers open)
            A policy's name, its config, or a json or jsonnet file with it.
        speedup : `float`, optional
            The layer speed-up that thresholds are chosen for: `{"thresholds": {"type": "budget", "speedup": ..}}`.
        trace : `ExitTrace`, optional (default = the archive's calibration trace)
        """
        present = self.archive.config.as_dict(quiet=True)["model"].get("exit_policy") or self.policy
        config = policy_config(present if policy is None else policy)
        if speedup is not None:
            config = at_speed(config, speedup)
        found = copy.copy(self)
        found.archive = with_policy(self.archive, config, trace)
        found._start()
        return found

    def calibrate(
        self,
        texts: Iterable[Text],
        labels: Iterable[Any],
        policy: str | dict[str, Any] | None = None,
        speedup: float | None = None,
    ) -> EarlyExitPipeline:
        """`with_policy`, fitted on `texts` and `labels`, which should be neither training nor test data."""
        return self.with_policy(policy, speedup, self.trace(texts, labels, source="texts given to calibrate"))

    def trace(
        self, texts: Iterable[Text], labels: Iterable[Any] | None = None, source: str = "texts given to trace"
    ) -> ExitTrace:
        """
        The outputs of all exits, from which policies are fitted and compared without running the model.

        # Parameters

        texts : `Iterable`
        labels : `Iterable`, optional
            Names of labels, their positions in `labels`, or the values of a regression.
        source : `str`, optional
            The name of the data, for reports.
        """
        instances = labelled_instances(self.archive.validation_dataset_reader, texts, labels)
        loader = evaluation_loader(self.archive, instances, self.batch_size)
        return task_of_archive(self.archive).trace(self.model, loader, None, source)

    def benchmark(
        self,
        texts: Iterable[Text],
        batch_sizes: Sequence[int] = (1, 32),
        engines: list[str] | None = None,
        repeats: int = 5,
        time_budget: float = 120,
    ) -> dict[str, Any]:
        """
        What `allennlp benchmark` measures, as its JSON: `counted` holds layers and multiply-accumulates, `measured` a
        row a batch size, engine and case with its seconds, `summary` a line a batch size and engine.

        # Parameters

        engines : `list[str]`, optional (default = `["single", "compaction", "depth_pools"]`)
        repeats : `int`, optional (default = `5`)
        time_budget : `float`, optional (default = `120`)
            Seconds for each batch size: as many of the first texts are measured as fit.
        """
        instances = labelled_instances(self.archive.validation_dataset_reader, texts)
        options = BenchmarkOptions("texts", list(batch_sizes), self.dtype, engines=engines, instances=instances)
        return benchmark(self.archive, options, repeats, time_budget)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the archive's files and a model card, `README.md`, to a folder that `from_pretrained` reads."""
        save_pretrained(self.archive, Path(folder))

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Uploads it to the hub; returns the commit's address. `options` as of `beem_plugin.publish.push_to_hub`."""
        return push_to_hub(self.archive, repo_id, **options)

    def __repr__(self) -> str:
        layers = ", ".join(map(str, self.model.encoder.exit_layers))
        what = f"policy {self.model.exit_policy.registered_name!r}, labels {self.labels}, dtype {self.dtype!r}"
        return f"EarlyExitPipeline(exits at layers {layers}, {what})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_idle"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def _start(self) -> None:
        self._idle: list[Predictor] = []
        # Sets the tokenizer's truncation, which threads may not do at the same time.
        reader = self.archive.validation_dataset_reader
        reader.texts_to_instances([dict.fromkeys(reader.text_fields, "")])

    def _one(self, item: Any) -> dict[str, Any]:
        (found,) = self._predict([item])
        return found

    def _predict(self, inputs: Iterable[Any]) -> Iterator[dict[str, Any]]:
        self.model.exit_policy.check_calibrated()
        reader = self.archive.validation_dataset_reader
        names, types = reader.text_fields, reader.text_types
        numbered = enumerate(inputs_of(inputs, names))
        rows = (TableRow(f"input {number}", row_of(item, names, types)) for number, item in numbered)
        try:
            predictor = self._idle.pop()
        except IndexError:
            predictor = self.new_predictor()
        parts = predictor.predict_rows(rows)
        if isinstance(inputs, Sized) and len(inputs) <= self.batch_size:  # too few for threads of their own
            parts = map(predictor.predict_batch_instance, predictor.instances_of(list(rows)))
        for part in parts:
            for prediction in part:
                yield self.named(prediction)
        self._idle.append(predictor)  # not after an error or an early end: its threads may still be running

    def new_predictor(self) -> Predictor:
        """A predictor with an engine of its own, which one thread at a time may use."""
        return Predictor.from_archive(self.archive, batch_size=self.batch_size, engine=dict(self.engine))

    def named(self, prediction: dict[str, Any]) -> dict[str, Any]:
        """A predictor's prediction without the texts, and with probabilities by label."""
        names = self.archive.validation_dataset_reader.text_fields
        found = {key: value for key, value in prediction.items() if key.removeprefix("input_") not in names}
        if "probabilities" in found:
            found["probabilities"] = dict(zip(self.model.vocab.labels, found["probabilities"], strict=True))
        return found
