"""The Python interface: a trained model as an object that is called with texts. Use it through `beem_plugin.load`."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.archival import Archive, load_archive, save_archive
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.archive_files import ARCHIVE_NAME, CONFIG_NAME
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.comparison.calibrate import at_speed, headline, policy_config, with_policy
from beem_plugin.comparison.evidence import calibration_evidence
from beem_plugin.data.hub import hub_folder
from beem_plugin.data.instance import Instance
from beem_plugin.data.table_file import TableRow
from beem_plugin.evaluation.benchmark import machine, run_benchmark
from beem_plugin.execution.file_engine import file_engine
from beem_plugin.execution.precision import INT8, cast_network
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.predictors.early_exit import row_of, texts_of
from beem_plugin.predictors.predictor import Predictor, check_precision
from beem_plugin.rendering.pages.model_card import model_card
from beem_plugin.tasks.classification import text_model
from beem_plugin.tasks.task import BenchmarkOptions, evaluation_loader, task_of_archive

Text = str | tuple[str, str] | Mapping[str, str]
"""One input: a text, a pair of texts, or texts by the names of the reader's columns."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.tar\.gz)")


class EarlyExitPipeline:
    """
    A trained model of texts with its tokenizer, exit policy and calibration.

    Calls from several threads do not block each other: each has an engine of its own. Weights are shared by the
    objects that `with_policy` and `calibrate` return. A pipeline can be pickled.

    # Parameters

    archive : `Archive`
    batch_size : `int`, optional (default = `32`)
        As of `allennlp predict`.
    engine : `str`, optional (default = the model's, or `"depth_pools"`)
    dtype : `str`, optional (default = `"float32"`)
        Of the layers: `"float32"`, `"bfloat16"`, `"float16"`, or on the CPU `"int8"`, which needs thresholds
        of its own (`calibrate`).
    """

    def __init__(
        self, archive: Archive, batch_size: int = 32, engine: str | None = None, dtype: str = "float32"
    ) -> None:
        cast_network(text_model(archive.model).encoder, dtype)
        check_precision(archive)
        self.archive = archive
        self.batch_size = batch_size
        self.engine = {"type": engine} if engine else file_engine(archive.config.as_dict(quiet=True))
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
        cuda_device : `int`, optional (default = `-1`)
            -1 for the CPU.
        overrides : `str | dict`, optional
            Changes to the archived config, as `-o` of the commands.
        revision : `str`, optional
            Branch, tag or commit in the hub.
        options : `Any`
            `batch_size`, `engine`, `dtype`: see the class.
        """
        name = str(path)
        found = Path(path).expanduser()
        if not found.exists() and HUB_ID.fullmatch(name):
            found = hub_folder(name, revision)
        if not (found / CONFIG_NAME).exists() and (found / ARCHIVE_NAME).exists():
            found = found / ARCHIVE_NAME
        return cls(load_archive(found, cuda_device, overrides), **options)

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
            A text, or a pair for a model of pairs: returns a prediction. A list, an array, a column of `datasets` or
            of pandas: returns a list. A generator: returns a generator that reads as far ahead as its queues hold.
            A mapping of the model's text columns to lists, as `datasets.map(..., batched=True)` gives: returns a
            mapping of lists.
        """
        if isinstance(inputs, str | tuple):
            return next(self._predict([inputs]))
        if isinstance(inputs, Mapping):
            names = self.archive.validation_dataset_reader.text_fields
            if any(isinstance(inputs.get(name), str) for name in names):
                return next(self._predict([{name: inputs[name] for name in names if name in inputs}]))
            if missing := [name for name in names if name not in inputs]:
                raise DataError(f"the input lacks {missing}; found {sorted(inputs)}")
            found = list(self._predict(zip(*(inputs[name] for name in names), strict=True)))
            return {key: [one[key] for one in found] for key in (found[0] if found else ())}
        if not isinstance(inputs, Iterable) or isinstance(inputs, bytes):
            raise DataError(f"found an input of type {type(inputs).__name__}, allowed: a text, or an iterable of texts")
        stream = self._predict(inputs)
        return list(stream) if hasattr(inputs, "__len__") else stream

    def with_policy(
        self,
        policy: str | dict[str, Any] | None = None,
        speedup: float | None = None,
        trace: ExitTrace | None = None,
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
        given = policy if policy is not None else self.archive.config.as_dict(quiet=True)["model"].get("exit_policy")
        config = policy_config(given or self.policy)
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
        instances = self._instances(texts, labels)
        loader = evaluation_loader(self.archive, instances, self.batch_size)
        return task_of_archive(self.archive).trace(self.model, loader, None, source)

    def benchmark(
        self,
        texts: Iterable[Text],
        batch_sizes: Sequence[int] = (1, 32),
        engines: list[str] | None = None,
        repeats: int = 5,
        time_budget: float | None = None,
    ) -> dict[str, Any]:
        """
        What `allennlp benchmark` measures, as its JSON: `counted` holds layers and multiply-accumulates, `measured` a
        row a batch size, engine and case with its seconds.

        # Parameters

        texts : `Iterable`
        batch_sizes : `Sequence[int]`, optional
        engines : `list[str]`, optional (default = `["single", "compaction", "depth_pools"]`)
        repeats : `int`, optional (default = `5`)
        time_budget : `float`, optional
            Seconds for each batch size, after which no repeat begins.
        """
        self.model.exit_policy.check_calibrated()
        instances = self._instances(texts)
        options = BenchmarkOptions("texts", list(batch_sizes), self.dtype, engines=engines, instances=instances)
        cases = task_of_archive(self.archive).benchmark_cases(self.archive, options)
        found = run_benchmark(cases, repeats, self.model.device, time_budget)
        return {"dtype": self.dtype, "exit_policy": self.policy, **machine(self.model.device, repeats), **found}

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the archive's files and a model card, `README.md`, to a folder that `from_pretrained` reads."""
        if self.dtype == INT8:
            raise ConfigurationError("save_pretrained: found int8 weights, allowed: a pipeline of another dtype")
        save_archive(self.archive, Path(folder))
        evidence, summary = None, ""
        trace = self.archive.calibration.trace if self.archive.calibration is not None else None
        if trace is not None:
            rule = copy.deepcopy(self.model.exit_policy)
            report = rule.calibrate(trace)
            evidence, summary = calibration_evidence(rule, report, trace).to_json(), headline(report)
        reader = self.archive.validation_dataset_reader
        card = model_card(self.archive.config.as_dict(quiet=True), self.model, reader, evidence, summary)
        (Path(folder) / "README.md").write_text(card, encoding="utf-8")

    def __repr__(self) -> str:
        layers = ", ".join(map(str, self.model.encoder.exit_layers))
        kind = self.model.exit_policy.registered_name
        return (
            f"EarlyExitPipeline(exits at layers {layers}, policy {kind!r}, labels {self.labels}, dtype {self.dtype!r})"
        )

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

    def _predict(self, inputs: Iterable[Any]) -> Iterator[dict[str, Any]]:
        self.model.exit_policy.check_calibrated()
        names = self.archive.validation_dataset_reader.text_fields
        rows = (TableRow(f"input {number}", row_of(item, names)) for number, item in enumerate(inputs))
        try:
            predictor = self._idle.pop()
        except IndexError:
            predictor = self.new_predictor()
        for part in predictor.predict_rows(rows):
            for prediction in part:
                yield self.named(prediction)
        self._idle.append(predictor)  # not after an error or an early end: its threads may still be running

    def new_predictor(self) -> Predictor:
        """A predictor with an engine of its own, which one thread at a time may use."""
        engine: dict[str, Any] = {} if self.engine is None else {"engine": dict(self.engine)}
        return Predictor.from_archive(self.archive, batch_size=self.batch_size, **engine)

    def named(self, prediction: dict[str, Any]) -> dict[str, Any]:
        """A predictor's prediction without the texts, and with probabilities by label."""
        names = self.archive.validation_dataset_reader.text_fields
        found = {key: value for key, value in prediction.items() if key.removeprefix("input_") not in names}
        if "probabilities" in found:
            found["probabilities"] = dict(zip(self.model.vocab.labels, found["probabilities"], strict=True))
        return found

    def _instances(self, texts: Iterable[Text], labels: Iterable[Any] | None = None) -> list[Instance]:
        reader = self.archive.validation_dataset_reader
        rows = [texts_of(row_of(item, reader.text_fields), reader.text_fields) for item in texts]
        if not rows:
            raise DataError("texts: found none, allowed: one or more")
        instances = reader.texts_to_instances(rows)
        values = [None] * len(rows) if labels is None else list(labels)
        if len(values) != len(rows):
            raise DataError(f"labels: found {len(values)} for {len(rows)} texts, allowed: as many")
        for number, (instance, value) in enumerate(zip(instances, values, strict=True)):
            instance.label = reader.labels.parse(self._label(value), f"labels[{number}]")
        return instances

    def _label(self, value: Any) -> Any:
        """The name for a label's position, which `datasets` and numpy give."""
        value = value.item() if hasattr(value, "item") else value
        names = self.model.vocab.labels
        if isinstance(value, int) and str(value) not in names and 0 <= value < len(names):
            return names[value]
        return value
