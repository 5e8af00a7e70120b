"""Training in several stages, each with its own objective, trained parameters, optimizer and number of epochs."""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from beem_plugin.backbones.renamed_weights import renamed
from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.common.registry import Lazy
from beem_plugin.data.data_loader import DataLoader
from beem_plugin.models.model import Model
from beem_plugin.models.multi_exit_model import MultiExitModel, check_objective
from beem_plugin.objectives import Objective
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.checkpointer import BEST_WEIGHTS, load_torch, save_torch
from beem_plugin.training.evaluation import evaluate
from beem_plugin.training.gradient_descent_trainer import GradientDescentTrainer
from beem_plugin.training.parameter_groups import count_parameters
from beem_plugin.training.random_state import get_random_state, set_random_state
from beem_plugin.training.stage import GIVEN, Stage
from beem_plugin.training.stage_result import StageResult
from beem_plugin.training.trainer import Trainer, TrainingError
from beem_plugin.training.trainer_keys import with_keys_of

logger = logging.getLogger(__name__)

LoaderMaker = Callable[[str | None, Lazy[DataLoader] | None], Any]


@Trainer.register("staged")
class StagedTrainer(Trainer):
    """
    Stages of gradient descent, one after the other, each from the best weights of the one before.

    Each stage has a trainer of its own, with a fresh optimizer and schedule, whose checkpoints, best weights and
    metrics lie in `stage_<number>_<name>/`. What one stage freezes is free again in the next, unless that freezes it
    too. All stages are built and checked before the first is trained. A run that is recovered skips the stages that
    were finished, and ends with the metrics of an uninterrupted one.

    metrics.json has the last stage's metrics, and of every stage `stage_<name>_best_epoch`, `..._best_validation_*`,
    `..._training_duration` and `..._trainable_parameters`; `training_duration` is that of all stages. When training
    ends early, the best weights of the latest stage that has any are archived.

    Registered as a `Trainer` with name "staged".

    # Parameters

    model, serialization_dir, data_loader, validation_data_loader
        Given by whoever builds the trainer.
    stages : `list[Stage]`
        In order.
    make_training_loader : `Callable`, optional
        Given too: makes the training loader for another source (`None`: the config's) and another `data_loader` block
        (`None`: the config's).
    tokenizer : optional
        Given too: the reader's tokenizer.
    callbacks : `list[TrainerCallback]`, optional (default = `None`)
        Of the last stage, like `calibrate_exits`; what they write goes to the serialization directory.
    defaults
        Every other key of the trainer "gradient_descent": holds for the stages that do not set it themselves.
    """

    @with_keys_of(GradientDescentTrainer.from_partial_objects, without=GIVEN)
    def __init__(
        self,
        model: Model,
        serialization_dir: str | Path,
        data_loader: Any,
        stages: list[Stage],
        validation_data_loader: Any = None,
        make_training_loader: LoaderMaker | None = None,
        callbacks: list[Lazy[TrainerCallback]] | None = None,
        tokenizer: Any = None,
        **defaults: Any,
    ) -> None:
        super().__init__(serialization_dir)
        if not stages:
            raise ConfigurationError("trainer.stages: found none, allowed: one or more")
        names = [stage.name for stage in stages]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"trainer.stages: found the names {', '.join(names)}, allowed: each name once")
        self.model = model
        self.stages = stages
        self.validation_data_loader = validation_data_loader
        self.callbacks = callbacks or []
        self.defaults = defaults
        self._needs_gradient = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self._data_loaders = [self._data_loader(number, data_loader, make_training_loader) for number in self._numbers]
        self._objectives = [self._objective(number, tokenizer) for number in self._numbers]
        self._results: list[StageResult] = []
        random_state = get_random_state()
        for number in self._numbers:
            self._check(number)
        # A training in one stage is the same as one without stages.
        set_random_state(random_state)

    def train(self) -> dict[str, Any]:
        """Trains all stages that are not finished yet, and leaves the model with the last one's best weights."""
        self._results = []
        try:
            for number in self._numbers:
                with self._objective_of(number):
                    self._run_or_skip(number)
        except BaseException:
            if self._results:
                self.final_metrics = self._conclude()
            raise
        self.final_metrics = self._conclude()
        return self.final_metrics

    def evaluate(self, data_loader: Any, description: str = "evaluation") -> dict[str, float]:
        """The metrics of the model as it is now; the loss is the last stage's, as in validation."""
        with self._objective_of(len(self.stages) - 1):
            return evaluate(self.model, data_loader, self.accelerator, description)

    # Stages

    @property
    def _numbers(self) -> range:
        return range(len(self.stages))

    def _directory(self, number: int) -> Path:
        return self.serialization_dir / f"stage_{number + 1}_{self.stages[number].name}"

    def _run_or_skip(self, number: int) -> None:
        stage, directory = self.stages[number], self._directory(number)
        is_last = number == len(self.stages) - 1
        title = f'stage {number + 1} of {len(self.stages)}, "{stage.name}"'
        # The last stage is never skipped: its trainer finds the finished epochs, and lets the callbacks finish.
        finished = None if is_last else StageResult.load(directory, self.accelerator)
        if finished is not None:
            logger.info("%s: was finished before", title)
            self.model.load_state_dict(renamed(load_torch(directory / BEST_WEIGHTS), self.model.state_dict()))
            self._results.append(finished)
            return
        trainer = self._build(number)
        if hasattr(self, "data"):
            trainer.data = self.data
        trainable, frozen = count_parameters(self.model)
        logger.info("%s: %s trainable parameters, %s frozen", title, f"{trainable:,}", f"{frozen:,}")
        try:
            trainer.train()
        finally:
            trainer.release()
            if trainer.final_metrics is not None:
                tracker = trainer.metric_tracker
                best = dict(tracker.best_epoch_metrics)
                metrics = trainer.final_metrics
                result = StageResult(stage.name, tracker.best_epoch, best, trainer.seconds, trainable, frozen, metrics)
                self._results.append(result)
        self._check_requirement(number, self._results[-1])
        if not is_last:
            self._results[-1].save(directory, trainer.accelerator)

    def _build(self, number: int) -> GradientDescentTrainer:
        """The trainer of a stage, for the model as it is now."""
        for parameter, needs_gradient in self._needs_gradient:
            parameter.requires_grad_(needs_gradient)
        options = {**self.defaults, **self.stages[number].options}
        callbacks = list(options.pop("callbacks", None) or [])
        if number == len(self.stages) - 1:
            callbacks += [_writing_to(callback, self.serialization_dir) for callback in self.callbacks]
        trainer = GradientDescentTrainer.from_partial_objects(
            model=self.model,
            serialization_dir=self._directory(number),
            data_loader=self._data_loaders[number],
            validation_data_loader=self.validation_data_loader,
            callbacks=callbacks,
            **options,
        )
        self.accelerator = trainer.accelerator
        return trainer

    def _check(self, number: int) -> None:
        """Builds a stage to see whether that works, and gives the model back."""
        stage = self.stages[number]
        logger.info('Checking stage "%s"', stage.name)
        with self._objective_of(number), self._errors_of(number):
            if self._objectives[number] is not None and isinstance(self.model, MultiExitModel):
                check_objective(self.model.objective, self.model.encoder)
            trainer = self._build(number)
            try:
                metrics = trainer.check_validation()
            finally:
                trainer.release()
            if stage.require is not None and self.validation_data_loader is None:
                raise ConfigurationError("trainer.require needs validation data: set validation_data_path")
            if stage.require is not None and metrics is not None and stage.require.metric not in metrics:
                raise ConfigurationError(not_allowed("trainer.require.metric", stage.require.metric, metrics))

    def _check_requirement(self, number: int, result: StageResult) -> None:
        require = self.stages[number].require
        failure = require and require.failure(result.best_metrics)
        if require is None or not failure:
            return
        message = f'stage "{result.name}": {failure} (trainer.stages.{number}.require)'
        if require.on_failure == "error":
            raise TrainingError(message)
        logger.warning(message)

    def _conclude(self) -> dict[str, Any]:
        """Leaves the best weights of the latest stage that has any, in the model and on disk; returns the metrics."""
        number, result = len(self._results) - 1, self._results[-1]
        for parameter, needs_gradient in self._needs_gradient:
            parameter.requires_grad_(needs_gradient)
        with self._objective_of(number):
            best = load_torch(self._directory(number) / BEST_WEIGHTS)
            self.model.load_state_dict(renamed(best, self.model.state_dict()))
        self.model.eval()
        # With the model's own objective: only then does the archive's config describe the weights.
        if self.accelerator.is_main_process:
            save_torch(self.model.state_dict(), self.serialization_dir / BEST_WEIGHTS)
        metrics = dict(result.metrics)
        if not metrics:
            metrics = {f"best_validation_{name}": value for name, value in result.best_metrics.items()}
            metrics["best_epoch"] = result.best_epoch
        for stage_result in self._results:
            metrics.update(stage_result.summary())
        seconds = sum(stage_result.seconds for stage_result in self._results)
        metrics["training_duration"] = str(datetime.timedelta(seconds=seconds))
        return metrics

    # The parts of a stage

    def _data_loader(self, number: int, default: Any, make_training_loader: LoaderMaker | None) -> Any:
        stage = self.stages[number]
        if stage.train_data_path is None and stage.data_loader is None:
            return default
        if make_training_loader is None:
            raise ConfigurationError(f"trainer.stages.{number}: train_data_path and data_loader need a config's reader")
        with self._errors_of(number):
            return make_training_loader(stage.train_data_path, stage.data_loader)

    def _objective(self, number: int, tokenizer: Any) -> Objective | None:
        lazy = self.stages[number].objective
        if lazy is None:
            return None
        if not isinstance(getattr(self.model, "objective", None), Objective):
            raise ConfigurationError(
                f"trainer.stages.{number}.objective: found an objective, allowed: none, since a "
                f"{type(self.model).__name__} has no `objective` that it could stand in for"
            )
        objective = lazy.construct()
        with self._errors_of(number):
            objective.start_training(self.model.vocab, tokenizer)
        return objective

    @contextmanager
    def _objective_of(self, number: int) -> Iterator[None]:
        """Within the block the model has the stage's objective, afterwards its own."""
        objective = self._objectives[number]
        if objective is None:
            yield
            return
        device = next(self.model.parameters()).device
        own = self.model.objective
        self.model.objective = objective.to(device)
        try:
            yield
        finally:
            self.model.objective = own
            self.model.to(next(self.model.parameters()).device)

    @contextmanager
    def _errors_of(self, number: int) -> Iterator[None]:
        """A stage is not the trainer that its errors speak of: they get the path of its block."""
        stage = self.stages[number]
        path = f"trainer.stages.{number}"
        try:
            yield
        except ConfigurationError as error:
            message = str(error)
            if path in message:
                raise
            found = re.match(r"(trainer\.|model\.)?(\w+)[:.]", message)
            if found is not None and found[2] in {"objective", "train_data_path", "require", *stage.options}:
                message = f"{path}.{message.removeprefix(found[1] or '')}"
            elif found is not None and found[1]:
                message = f'{message} (stage "{stage.name}")'
            else:
                message = f"{path}: {message}"
            raise ConfigurationError(message) from error


def _writing_to(callback: Lazy[TrainerCallback], serialization_dir: Path) -> Lazy[TrainerCallback]:
    """The callback with another directory than that of the trainer that will construct it."""
    return Lazy(lambda **extras: callback.construct(**{**extras, "serialization_dir": serialization_dir}))
