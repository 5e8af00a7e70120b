"""From a config to an archived model."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate import PartialState

from beem_plugin.archival import archive_model, save_resources
from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.common.logging import prepare_logging
from beem_plugin.common.params import load_config
from beem_plugin.common.registry import Lazy, Params, Registrable
from beem_plugin.data.data_loader import DataLoader
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.models.model import Model
from beem_plugin.objectives import Objective
from beem_plugin.training.gradient_descent_trainer import GradientDescentTrainer  # noqa: F401  registers the default
from beem_plugin.training.launch import join_processes, launched_processes, launched_rank
from beem_plugin.training.metrics_file import write_metrics
from beem_plugin.training.random_state import prepare_environment
from beem_plugin.training.schedules import constant  # noqa: F401  registers the schedules
from beem_plugin.training.serialization import (
    METRICS_NAME,
    VOCABULARY_DIR,
    check_serialization_dir,
    prepared_directory,
    write_config,
)
from beem_plugin.training.staged_trainer import StagedTrainer  # noqa: F401  registers "staged"
from beem_plugin.training.trainer import Trainer
from beem_plugin.training.training_data import TrainingData

logger = logging.getLogger(__name__)


@dataclass
class Invocation:
    """
    What the command line and the launcher say beside the config.

    # Parameters

    is_recovering : `bool`, optional (default = `False`)
        The vocabulary is taken from the directory.
    is_primary : `bool`, optional (default = `True`)
        Whether this process writes files.
    seed : `int`, optional (default = `13370`)
        For the order of the training data.
    config : `dict`, optional (default = `{}`)
        The whole config.
    dry_run : `bool`, optional (default = `False`)
        Test data are read even if they will not be evaluated on.
    """

    is_recovering: bool = False
    is_primary: bool = True
    seed: int = 13370
    config: dict[str, Any] = field(default_factory=dict)
    dry_run: bool = False


class TrainModel(Registrable):
    """
    The top level of a config: everything that `allennlp train` needs, built in the order of need.

    Registered as a `TrainModel` with name "default".

    # Parameters

    serialization_dir : `str | Path`
        Given by the command.
    dataset_reader : `DatasetReader`
    train_data_path : `str`
    model : `Model`
    data_loader : `DataLoader`
        Its `batch_size` is per process.
    trainer : `Trainer`
    vocabulary : `dict`, optional (default = `None`)
        `{"type": "from_files", "directory": ...}`, or labels come from the instances.
    datasets_for_vocab_creation : `list[str]`, optional (default = all that are read)
        Of "train", "validation", "test".
    validation_dataset_reader : `DatasetReader`, optional (default = `dataset_reader`)
        Also reads the test data.
    validation_data_path : `str`, optional (default = `None`)
    validation_data_loader : `DataLoader`, optional (default = `data_loader`)
    test_data_path : `str`, optional (default = `None`)
    evaluate_on_test : `bool`, optional (default = `False`)
        Adds `test_*` to the metrics.
    batch_weight_key : `str`, optional (default = `""`)
        Only "": the loss on test data is the mean over samples already.
    include_in_archive : `list[str]`, optional (default = `None`)
        Globs of further files of the serialization directory.
    evaluation : `dict`, optional (default = `None`)
        Options of `allennlp evaluate`; not for training.
    random_seed, numpy_seed, pytorch_seed : `int`, optional (default = `13370`, `1337`, `133`)
        Seeds of Python's, numpy's and torch's generators; taken out before this object is built.
    distributed : optional
        Refused: processes are started by `torchrun` or `accelerate launch`.
    """

    default_implementation = "default"

    def __init__(
        self,
        serialization_dir: str | Path,
        model: Model,
        trainer: Trainer,
        test_data_loader: DataLoader | None = None,
        include_in_archive: list[str] | None = None,
        is_primary: bool = True,
    ) -> None:
        self.serialization_dir = Path(serialization_dir)
        self.model = model
        self.trainer = trainer
        self.test_data_loader = test_data_loader
        self.include_in_archive = include_in_archive
        self.is_primary = is_primary

    @classmethod
    def from_partial_objects(
        cls,
        serialization_dir: str | Path,
        dataset_reader: DatasetReader,
        train_data_path: str,
        model: Lazy[Model],
        data_loader: Lazy[DataLoader],
        trainer: Lazy[Trainer],
        vocabulary: dict[str, Any] | None = None,
        datasets_for_vocab_creation: list[str] | None = None,
        validation_dataset_reader: DatasetReader | None = None,
        validation_data_path: str | None = None,
        validation_data_loader: Lazy[DataLoader] | None = None,
        test_data_path: str | None = None,
        evaluate_on_test: bool = False,
        batch_weight_key: str = "",
        include_in_archive: list[str] | None = None,
        evaluation: dict | None = None,
        invocation: Invocation | None = None,
    ) -> TrainModel:
        """Reads the data, builds vocabulary, model, loaders and trainer, and saves the vocabulary and the tokenizer."""
        invocation = invocation or Invocation()
        if batch_weight_key:
            raise ConfigurationError(f'batch_weight_key: found {batch_weight_key!r}, allowed: ""')
        if evaluate_on_test and test_data_path is None:
            raise ConfigurationError("evaluate_on_test is true, but there is no test_data_path")
        evaluation_reader = validation_dataset_reader or dataset_reader
        datasets = {"train": dataset_reader.read(train_data_path)}
        if validation_data_path is not None:
            datasets["validation"] = evaluation_reader.read(validation_data_path)
        if test_data_path is not None and (evaluate_on_test or invocation.dry_run):
            datasets["test"] = evaluation_reader.read(test_data_path)
        for split, instances in datasets.items():
            logger.info("%s: %d instances", split, len(instances))
            if not instances:
                raise ConfigurationError(f"{split}_data_path: there is no instance in it")
        directory = Path(serialization_dir)
        vocab = _make_vocabulary(
            vocabulary, datasets, datasets_for_vocab_creation, dataset_reader, directory, invocation.is_recovering
        )
        if invocation.is_primary:
            vocab.save_to_files(directory / VOCABULARY_DIR)
        # What the model learns from the reader; a model that takes none of it is given none of it.
        built_model = model.construct(
            vocab=vocab,
            serialization_dir=directory,
            metric=dataset_reader.metric,
            is_regression=dataset_reader.is_regression,
            tokenizer=getattr(dataset_reader, "tokenizer", None),
        )
        built_model.check_tokenizer(getattr(dataset_reader, "tokenizer", None))
        for split, instances in datasets.items():
            (dataset_reader if split == "train" else evaluation_reader).limit_length(built_model.max_tokens, instances)
        built_model.prepare(datasets["train"])
        objective = getattr(built_model, "objective", None)
        if isinstance(objective, Objective):
            objective.start_training(vocab, getattr(dataset_reader, "tokenizer", None))
        if invocation.is_primary:
            save_resources(directory, built_model, dataset_reader)
        pad_token_id = getattr(getattr(dataset_reader, "tokenizer", None), "pad_token_id", 0)
        loaders: dict[str, DataLoader] = {}
        for split, instances in datasets.items():
            lazy = data_loader if split == "train" else validation_data_loader or data_loader
            reader = dataset_reader if split == "train" else evaluation_reader
            loaders[split] = lazy.construct(
                instances=instances,
                vocab=vocab,
                pad_token_id=pad_token_id,
                training=split == "train",
                seed=invocation.seed,
                collator=reader.collator(vocab, pad_token_id),
            )

        def make_training_loader(source: str | None, lazy: Lazy[DataLoader] | None) -> DataLoader:
            """For a trainer that trains on other data for a while."""
            instances = datasets["train"] if source is None else dataset_reader.read(source)
            if not instances:
                raise ConfigurationError(f"train_data_path: there is no instance in {source}")
            return (lazy or data_loader).construct(
                instances=instances,
                vocab=vocab,
                pad_token_id=pad_token_id,
                training=True,
                seed=invocation.seed,
                collator=dataset_reader.collator(vocab, pad_token_id),
            )

        built_trainer = trainer.construct(
            serialization_dir=directory,
            model=built_model,
            data_loader=loaders["train"],
            validation_data_loader=loaders.get("validation"),
            make_training_loader=make_training_loader,
            tokenizer=getattr(dataset_reader, "tokenizer", None),
        )
        built_trainer.data = TrainingData(
            dataset_reader=dataset_reader,
            train_data_path=train_data_path,
            train_instances=datasets["train"],
            validation_data_path=validation_data_path,
            validation_instances=datasets.get("validation", []),
            test_data_path=test_data_path,
            test_instances=datasets.get("test", []),
            pad_token_id=pad_token_id,
            policy_config=_policy_config(invocation.config),
        )
        return cls(
            directory, built_model, built_trainer, loaders.get("test"), include_in_archive, invocation.is_primary
        )

    def run(self) -> dict[str, Any]:
        """
        Trains, evaluates on the test data if the config says so, writes metrics.json and the archive.

        When training fails or is interrupted after an epoch, the best epoch so far is archived all the same and the
        error is raised again.
        """
        try:
            metrics = self.trainer.train()
        except BaseException:
            if self.trainer.final_metrics is not None:
                self.save(self.trainer.final_metrics)
                logger.error("Training ended early; the best epoch so far is archived, --recover goes on.")
            raise
        if self.test_data_loader is not None:
            self._write_metrics(metrics)
            test_metrics = self.trainer.evaluate(self.test_data_loader, "test")
            metrics.update({f"test_{name}": value for name, value in test_metrics.items()})
        self.save(metrics)
        return metrics

    def save(self, metrics: dict[str, Any]) -> None:
        """Writes metrics.json, then the archive, and says where they are."""
        if not self.is_primary:
            return
        self._write_metrics(metrics)
        archive = archive_model(self.serialization_dir, self.include_in_archive)
        logger.info("Metrics: %s", json.dumps(metrics, indent=2, default=str))
        print(f"archive: {archive}\nmetrics: {self.serialization_dir / METRICS_NAME}", flush=True)

    def _write_metrics(self, metrics: dict[str, Any]) -> None:
        if self.is_primary:
            write_metrics(self.serialization_dir / METRICS_NAME, metrics)


TrainModel.register("default", constructor="from_partial_objects")(TrainModel)


def train_model(
    params: Params,
    serialization_dir: str | Path,
    recover: bool = False,
    force: bool = False,
    dry_run: bool = False,
    file_friendly_logging: bool = False,
    return_model: bool = True,
) -> Model | None:
    """
    What `allennlp train` does.

    # Parameters

    params : `Params`
        The config, overrides applied. It is not consumed.
    serialization_dir : `str | Path`
        Must be empty or not there, except with `recover` or `force`.
    recover : `bool`, optional (default = `False`)
        Goes on with the run in the directory, whose config must be the same.
    force : `bool`, optional (default = `False`)
        Deletes the run in the directory, once the new one is constructed.
    dry_run : `bool`, optional (default = `False`)
        Builds everything, with the vocabulary saved and the sizes logged, but does not train.
    file_friendly_logging : `bool`, optional (default = `False`)
        Progress as few, whole lines.
    return_model : `bool`, optional (default = `True`)

    # Returns

    `Model | None`
        The model with its best weights.
    """
    directory = Path(serialization_dir)
    config = params.as_dict(quiet=True)
    if config.get("distributed") is not None:
        raise ConfigurationError(
            "distributed: found a block, allowed: null; several processes are started by their launcher, as in "
            "`torchrun --nproc_per_node 2 -m beem_plugin train ...` or `accelerate launch -m beem_plugin train ...`"
        )
    rank = launched_rank()
    trainer = config.get("trainer")
    processes = join_processes(trainer.get("cuda_device") if isinstance(trainer, dict) else None)
    if rank == 0:
        check_serialization_dir(directory, config, recover, force)
    params = params.duplicate()
    params.pop("distributed", None)
    seed = params.get("random_seed", 13370)
    prepare_environment(params)
    invocation = Invocation(recover, rank == 0, seed if seed is not None else 13370, config, dry_run)
    # The first process makes the directory, the others wait until it is there.
    with prepared_directory(directory, recover, force) if rank == 0 else nullcontext():
        if rank == 0:
            write_config(directory, config)
        processes.wait_for_everyone()
        prepare_logging(directory, file_friendly_logging, rank, launched_processes())
        run = TrainModel.from_params(params, serialization_dir=directory, invocation=invocation)
    processes.wait_for_everyone()
    if dry_run:
        logger.info("Dry run: everything is built, nothing is trained.")
        return run.model if return_model else None
    run.run()
    return run.model if return_model else None


def train_model_from_args(args: argparse.Namespace) -> None:
    """`train_model` with the arguments of the command line."""
    train_model(
        params=load_config(args.param_path, args.overrides),
        serialization_dir=args.serialization_dir,
        recover=args.recover,
        force=args.force,
        dry_run=args.dry_run,
        file_friendly_logging=args.file_friendly_logging,
        return_model=False,
    )
    if launched_processes() > 1:
        PartialState().destroy_process_group()


def _make_vocabulary(
    config: dict[str, Any] | None,
    datasets: dict[str, Sequence[Instance]],
    names: list[str] | None,
    reader: DatasetReader,
    serialization_dir: Path,
    is_recovering: bool,
) -> Vocabulary:
    saved = serialization_dir / VOCABULARY_DIR
    if is_recovering and saved.is_dir():
        return Vocabulary.from_files(saved)
    config = dict(config or {})
    kind = config.pop("type", "from_instances")
    if kind == "from_files" and set(config) == {"directory"}:
        return Vocabulary.from_files(config["directory"])
    if kind not in ("from_files", "from_instances"):
        raise ConfigurationError(not_allowed("vocabulary.type", kind, ["from_files", "from_instances"]))
    if kind == "from_files" or config:
        raise ConfigurationError(
            f"vocabulary: found keys {', '.join(config) or 'none'}, allowed: `directory` with type from_files, "
            "none with type from_instances"
        )
    for name in names or []:
        if name not in datasets:
            raise ConfigurationError(not_allowed("datasets_for_vocab_creation", name, datasets))
    chosen = (instance for name in names or datasets for instance in datasets[name])
    return Vocabulary.from_instances(chosen, reader.label_names)


def _policy_config(config: dict[str, Any]) -> dict[str, Any]:
    policy = (config.get("model") or {}).get("exit_policy") or "final"
    return {"type": policy} if isinstance(policy, str) else dict(policy)
