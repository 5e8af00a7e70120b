"""The top level of a training config."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beem_plugin.archival import archive_model, save_resources
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, Registrable
from beem_plugin.data.data_loader import DataLoader
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.models.model import Model
from beem_plugin.objectives import Objective
from beem_plugin.training.gradient_descent_trainer import GradientDescentTrainer  # noqa: F401  registers the default
from beem_plugin.training.metrics_file import write_metrics
from beem_plugin.training.run_vocabulary import make_vocabulary
from beem_plugin.training.schedules import constant  # noqa: F401  registers the schedules
from beem_plugin.training.serialization import METRICS_NAME, VOCABULARY_DIR
from beem_plugin.training.staged_trainer import StagedTrainer  # noqa: F401  registers "staged"
from beem_plugin.training.trainer import Trainer
from beem_plugin.training.training_data import TrainingData

logger = logging.getLogger(__name__)


@dataclass
class Invocation:
    """
    Settings of the command line and the launcher.

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
    The top level of a config for `allennlp train`.

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
        vocab = make_vocabulary(
            vocabulary, datasets, datasets_for_vocab_creation, dataset_reader, directory, invocation.is_recovering
        )
        if invocation.is_primary:
            vocab.save_to_files(directory / VOCABULARY_DIR)
        # Arguments that the model's constructor does not take are dropped.
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

        def make_loader(split: str, instances: Sequence[Instance], lazy: Lazy[DataLoader]) -> DataLoader:
            reader = dataset_reader if split == "train" else evaluation_reader
            return lazy.construct(
                instances=instances,
                vocab=vocab,
                pad_token_id=pad_token_id,
                training=split == "train",
                seed=invocation.seed,
                collator=reader.collator(vocab, pad_token_id),
            )

        def make_training_loader(source: str | None, lazy: Lazy[DataLoader] | None) -> DataLoader:
            """For a trainer with stages on other data."""
            instances = datasets["train"] if source is None else dataset_reader.read(source)
            if not instances:
                raise ConfigurationError(f"train_data_path: there is no instance in {source}")
            return make_loader("train", instances, lazy or data_loader)

        loaders = {
            split: make_loader(split, instances, (split != "train" and validation_data_loader) or data_loader)
            for split, instances in datasets.items()
        }
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

        When training fails or is interrupted after an epoch, the best epoch so far is archived and the error is raised
        again.
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
        """Writes metrics.json and the archive, and prints their paths."""
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


def _policy_config(config: dict[str, Any]) -> dict[str, Any]:
    policy = (config.get("model") or {}).get("exit_policy") or "final"
    return {"type": policy} if isinstance(policy, str) else dict(policy)
