"""The seam between commands and what a model predicts."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.registry import Lazy, Params, Registrable
from beem_plugin.data.data_loader import DataLoader
from beem_plugin.data.instance import Instance
from beem_plugin.execution import Engine
from beem_plugin.models.model import Model
from beem_plugin.rendering.tables import Table

logger = logging.getLogger(__name__)


@dataclass
class BenchmarkOptions:
    """The arguments of `allennlp benchmark` that a task reads. Those of other tasks are `None`."""

    source: str
    batch_sizes: list[int]
    dtype: str = "float32"
    max_instances: int | None = None
    engines: list[str] | None = None
    skipped_blocks: list[str] | None = None
    num_beams: int | None = None
    max_length: int | None = None
    instances: Sequence[Instance] | None = None  # what is measured, in place of `source`


@dataclass
class Case:
    """What a benchmark times; `case` is `"full_depth"`, `"exits"` or `"no_sample_exits"`, an idle policy."""

    engine: str
    case: str
    run: Callable[[], Iterable[Any]]  # yields a result a batch, see `timing.measure`
    counts: Callable[[], dict[str, Any]]  # what is counted of the last run, not timed: `samples` at least
    rates: dict[str, str] = field(default_factory=lambda: {"sentences": "samples"})
    """Rates are given for these units; the value is the name of their count."""
    reference: str | None = None  # the engine whose full depth is 1x
    has_latency: bool = True  # whether results come batch by batch


class Task(Registrable):
    """
    The difference between classification, regression, captioning and other tasks. A model names its task
    (`Model.task`); the config's block `evaluation` holds the task's options. Commands use a task through this class
    only. A new task is a subclass in a file here, a model and a dataset reader; see `token_classification.py`.
    """

    default_implementation = "classification"

    uses_engines: ClassVar[bool] = True
    """Whether an `Engine` runs the model, so that `--engine` and `--engines` are allowed."""

    benchmark_options: ClassVar[tuple[str, ...]] = ("engines",)
    """The fields of `BenchmarkOptions` that not every task has, and this one has."""

    def check_model(self, model: Any) -> None:
        """Raises a `ConfigurationError` if the model cannot be calibrated on a trace. Called before training."""
        if (policy := getattr(model, "exit_policy", None)) is not None:
            policy.check_can_be_fitted()

    def evaluate(
        self,
        archive: Archive,
        source: str,
        batch_size: int | None = None,
        engine: Engine | None = None,
        predictions_file: str | None = None,
    ) -> dict[str, Any]:
        """
        The metrics under the archive's policy, JSON-able. Intervals are added for `exit_histogram`, and for `accuracy`
        over `labelled_samples`.

        # Parameters

        archive : `Archive`
        source : `str`
            What the validation reader reads: a split, or a file.
        batch_size : `int`, optional (default = the config's)
        engine : `Engine`, optional (default = the model's)
        predictions_file : `str`, optional
        """
        raise NotImplementedError(f"{type(self).__name__} does not define evaluate")

    def trace(self, model: Any, batches: Iterable[dict[str, Tensor]], ids: list[str] | None, source: str) -> ExitTrace:
        """
        Runs all exits over a data set; the trace is in the data set's order.

        # Parameters

        model : `Model`
        batches : `Iterable[dict[str, Tensor]]`
            From the reader's collator, in any order; `index` is each sample's position in the data set.
        ids : `list[str]`, optional
            The samples' identifiers, in the data set's order.
        source : `str`
            Name of the data, for reports.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define trace")

    def benchmark_instances(self, archive: Archive, source: str) -> Sequence[Instance]:
        """The samples of a benchmark on `source`."""
        return read_instances(archive, source)

    def benchmark_cases(self, archive: Archive, options: BenchmarkOptions) -> Iterator[tuple[int, list[Case]]]:
        """The cases of one batch size after the other; the engine `transformers` at full depth is among them."""
        raise ConfigurationError(
            f"benchmark: found a model {type(archive.model).__name__}, allowed: one of a task "
            "with a benchmark, such as multi_exit_classifier"
        )

    def benchmark_note(self, counted: dict[str, Any]) -> str:
        """The counted speed-ups, under the table of `benchmark`."""
        return (
            f"layer speed-up {counted['layer_speedup']:.3f}x, multiply-accumulates (heads included) "
            f"{counted['mac_speedup']:.3f}x"
        )

    def legend(self, model: Any) -> str:
        """What the numbers in a prediction are, in a line for the terminal; empty if that needs no word."""
        return ""

    def tables(self, metrics: dict[str, Any]) -> list[Table]:
        """Further tables of the metrics that `evaluate` gave, such as one a class."""
        return []


def task_of(model: Model, config: dict[str, Any] | None = None) -> Task:
    """The task of a model; the block `evaluation` of an archive's config has its options, and its `type` by default."""
    block = (config or {}).get("evaluation") or {}
    if not isinstance(block, dict):
        raise ConfigurationError(f"evaluation: found {block!r}, allowed: a block")
    name = model.task or model.default_evaluation
    kind = {"type": name} if name else {}
    return Task.from_params(Params({**kind, **block}, history="evaluation."))


def task_of_archive(archive: Archive) -> Task:
    """The task of an archive's model, with the options of its config."""
    return task_of(archive.model, archive.config.as_dict(quiet=True))


def read_instances(archive: Archive, source: str) -> Sequence[Instance]:
    """What the validation reader reads, one sample at least; an error names the data of the archive's config."""
    try:
        instances = archive.validation_dataset_reader.read(source)
    except DataError as error:
        config = archive.config.as_dict(quiet=True)
        known = {key: config[key] for key in ("validation_data_path", "test_data_path") if config.get(key)}
        if Path(source.partition("[")[0]).exists() or source in known.values() or not known:
            raise
        paths = " and ".join(f"{key} {path!r}" for key, path in known.items())
        raise DataError(f"{error}; allowed: a path, or FILE[test]; the archive's config has {paths}") from None
    if not instances:
        raise ConfigurationError(f"{source}: found no sample")
    return instances


def warn_without_exits(model: Any) -> None:
    """Says how exits come into an archive whose policy lets no sample exit early."""
    policy = getattr(model, "exit_policy", None)
    if policy is not None and not policy.leaves_early:
        logger.warning(
            "the archive's policy is %s: no sample exits early, so there is no speed-up; give a policy with -o "
            "'{\"model.exit_policy\": {..}}', or write one into a new archive with `allennlp calibrate ARCHIVE "
            "--policy P --output-archive NEW.tar.gz`",
            policy.registered_name,
        )


def evaluation_loader(archive: Archive, instances: Sequence[Instance], batch_size: int | None) -> DataLoader:
    """The config's loader for validation, with another batch size if one is given."""
    config = archive.config.as_dict(quiet=True)
    params = config.get("validation_data_loader") or config.get("data_loader") or {}
    params = {key: value for key, value in params.items() if key != "batches_per_epoch"}
    if batch_size is not None:
        params = {"type": "bucket", "batch_size": batch_size, "num_workers": params.get("num_workers", 0)}
    reader = archive.validation_dataset_reader
    pad_token_id = reader.tokenizer.pad_token_id
    return Lazy(DataLoader, params=Params(params)).construct(
        instances=instances,
        vocab=archive.model.vocab,
        pad_token_id=pad_token_id,
        training=False,
        collator=reader.collator(archive.model.vocab, pad_token_id),
    )
