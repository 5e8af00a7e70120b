"""The top level of a training config."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beem_plugin.archival import archive_model, save_resources
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, Registrable
from beem_plugin.data.data_loader import DataLoader
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.data.slices import share_rows
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.models.model import Model
from beem_plugin.objectives import Objective
from beem_plugin.training.build_vocab import make_vocabulary
from beem_plugin.training.epoch import write_metrics
from beem_plugin.training.gradient_descent_trainer import GradientDescentTrainer  # noqa: F401  registers the default
from beem_plugin.training.serialization import METRICS_NAME, VOCABULARY_DIR
from beem_plugin.training.staged_trainer import StagedTrainer  # noqa: F401  registers "staged"
from beem_plugin.training.trainer import Trainer, TrainingData, test_paths, with_means

logger = logging.getLogger(__name__)


@dataclass
class Invocation:
    """Settings of the command line and the launcher."""

    config: dict[str, Any]
    is_recovering: bool = False  # reads the vocabulary from the serialization directory
    is_primary: bool = True  # whether this process writes files
    seed: int = 13370  # for the order of the training data
    dry_run: bool = False  # reads test data even if `evaluate_on_test` is false

    @property
    def policy_config(self) -> dict[str, Any]:
        policy = (self.config.get("model") or {}).get("exit_policy") or "final"
        return {"type": policy} if isinstance(policy, str) else dict(policy)


class TrainModel(Registrable):
    """
    The top level of a config for `allennlp train`.

    Registered as a `TrainModel` with name "default".

    # Parameters

    serialization_dir, invocation
        Given by the command.
    dataset_reader : `DatasetReader`
    train_data_path : `str`
    model : `Model`
    data_loader : `DataLoader`
        Its `batch_size` is per process.
    trainer : `Trainer`
    vocabulary : `dict`, optional (default = `None`)
        `{"type": "from_files", "directory": ...}`, a folder or what `allennlp build-vocab` writes, or the labels found.
    datasets_for_vocab_creation : `list[str]`, optional (default = all that are read)
        Of "train", "validation", "test".
    validation_dataset_reader : `DatasetReader`, optional (default = `dataset_reader`)
        Also reads the test data.
    validation_data_path : `str`, optional (default = `None`)
    validation_data_loader : `DataLoader`, optional (default = `data_loader`)
    test_data_path : `str` or `dict[str, str]`, optional (default = `None`)
        Several test sets by name, as MNLI's `{"matched": ..., "mismatched": ...}`.
    evaluate_on_test : `bool`, optional (default = `False`)
        Adds `test_*` to the metrics; with several test sets `test_<name>_*`, and in `test_*` their means.
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
        invocation: Invocation,
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
        test_data_path: str | dict[str, str] | None = None,
        evaluate_on_test: bool = False,
        batch_weight_key: str = "",
        include_in_archive: list[str] | None = None,
        evaluation: dict | None = None,
    ) -> None:
        """Reads the data, builds all parts, and saves the vocabulary and the tokenizer."""
        if batch_weight_key:
            raise ConfigurationError(f'batch_weight_key: found {batch_weight_key!r}, allowed: ""')
        if evaluate_on_test and test_data_path is None:
            raise ConfigurationError("evaluate_on_test is true, but there is no test_data_path")
        directory = self.serialization_dir = Path(serialization_dir)
        self.include_in_archive, self.is_primary = include_in_archive, invocation.is_primary
        paths = {"train": train_data_path}
        if validation_data_path is not None:
            paths["validation"] = validation_data_path
        paths |= test_paths(test_data_path if evaluate_on_test or invocation.dry_run else None)
        readers = dict.fromkeys(paths, validation_dataset_reader or dataset_reader)
        readers["train"] = dataset_reader
        datasets = {split: readers[split].read(path) for split, path in paths.items()}
        for split, instances in datasets.items():
            logger.info("%s: %d instances", split, len(instances))
            if not instances:
                raise ConfigurationError(f"{split}_data_path: there is no instance in it")
            if split != "train" and share_rows(paths[split], train_data_path):
                logger.warning(
                    "%s data: found %r, which has rows of train_data_path %r: figures on trained rows are too good",
                    *(split, paths[split], train_data_path),
                )
        if invocation.is_recovering and (directory / VOCABULARY_DIR).is_dir():
            vocab = Vocabulary.from_files(directory / VOCABULARY_DIR)
        else:
            vocab = make_vocabulary(vocabulary, datasets, datasets_for_vocab_creation, dataset_reader)
        if self.is_primary:
            vocab.save_to_files(directory / VOCABULARY_DIR)
        tokenizer = getattr(dataset_reader, "tokenizer", None)
        # Arguments that the model's constructor does not take are dropped.
        self.model = model.construct(
            vocab=vocab,
            serialization_dir=directory,
            metric=dataset_reader.metric,
            is_regression=dataset_reader.is_regression,
            tokenizer=tokenizer,
        )
        self.model.check_tokenizer(tokenizer)
        for split, instances in datasets.items():
            readers[split].limit_length(self.model.max_tokens, instances)
        self.model.prepare(datasets["train"])
        objective = getattr(self.model, "objective", None)
        if isinstance(objective, Objective):
            objective.start_training(vocab, tokenizer)
        if self.is_primary:
            save_resources(directory, self.model, dataset_reader)
        pad_token_id = getattr(tokenizer, "pad_token_id", 0)

        def make_loader(split: str, instances: Sequence[Instance], lazy: Lazy[DataLoader]) -> DataLoader:
            return lazy.construct(
                instances=instances,
                vocab=vocab,
                pad_token_id=pad_token_id,
                training=split == "train",
                seed=invocation.seed,
                collator=readers[split].collator(vocab, pad_token_id),
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
        self.test_data_loaders = {split: loader for split, loader in loaders.items() if split.startswith("test")}
        self.trainer = trainer.construct(
            serialization_dir=directory,
            model=self.model,
            data_loader=loaders["train"],
            validation_data_loader=loaders.get("validation"),
            make_training_loader=make_training_loader,
            tokenizer=tokenizer,
        )
        self.trainer.data = TrainingData(dataset_reader, paths, datasets, pad_token_id, invocation.policy_config)

    def run(self) -> dict[str, Any]:
        """Trains, tests if the config says so, writes metrics and archive, also after an error behind a whole epoch."""
        try:
            metrics = self.trainer.train()
        except BaseException:
            if self.trainer.final_metrics is not None:
                self.save(self.trainer.final_metrics)
                logger.error("Training ended early; the best epoch so far is archived, --recover goes on.")
            raise
        if self.test_data_loaders:
            self._write_metrics(metrics)
            found = {split: self.trainer.evaluate(loader, split) for split, loader in self.test_data_loaders.items()}
            metrics.update(with_means(found))
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


TrainModel.register("default")(TrainModel)
