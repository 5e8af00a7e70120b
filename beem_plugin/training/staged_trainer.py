"""Training in several stages, each with its own objective, trained parameters, optimizer and number of epochs."""

import datetime
import logging
from pathlib import Path
from typing import Any

from beem_plugin.common.archive_files import BEST_WEIGHTS
from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.common.recipes import with_keys_of
from beem_plugin.common.registry import Lazy
from beem_plugin.models.model import Model
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.checkpointer import load_torch, save_torch
from beem_plugin.training.evaluation import evaluate
from beem_plugin.training.gradient_descent_trainer import GradientDescentTrainer
from beem_plugin.training.random_state import get_random_state, set_random_state
from beem_plugin.training.stage import GIVEN, LoaderMaker, Stage
from beem_plugin.training.trainer import Trainer

logger = logging.getLogger(__name__)


@Trainer.register("staged")
class StagedTrainer(Trainer):
    """
    Stages of gradient descent, one after the other, each from the best weights of the one before.

    Each stage has its own trainer, with a new optimizer and schedule, whose checkpoints, best weights and metrics lie
    in `stage_<number>_<name>/`. Parameters that a stage freezes are trainable in the next, unless that freezes them
    too. All stages are built and checked before the first is trained. A recovered run restores finished stages from
    their last checkpoints, and ends with the metrics of an uninterrupted one.

    metrics.json has the last stage's metrics, and of every stage `stage_<name>_best_epoch`, `..._best_validation_*`,
    `..._training_duration` and `..._trainable_parameters`; `training_duration` is that of all stages. When training
    ends early, the best weights of the latest stage that has any are archived.

    Registered as a `Trainer` with name "staged".

    # Parameters

    model, serialization_dir, data_loader, validation_data_loader
        Given by the program, like `make_training_loader` and `tokenizer`.
    stages : `list[Stage]`
        In order.
    make_training_loader : `Callable`, optional
        Makes the training loader for a source and a `data_loader` block; `None` stands for the config's.
    tokenizer : optional
        The reader's tokenizer.
    callbacks : `list[TrainerCallback]`, optional (default = `None`)
        Of the last stage, like `calibrate_exits`; they write to the serialization directory.
    defaults
        Every other key of the trainer "gradient_descent"; defaults of the stages.
    """

    @with_keys_of(GradientDescentTrainer.__init__, without=GIVEN)
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
        self._requires_grad = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self._metrics: dict[str, Any] = {}
        self._summaries: dict[str, Any] = {}
        for number, stage in enumerate(stages):
            stage.prepare(number, self.serialization_dir, model, data_loader, make_training_loader, tokenizer)
        random_state = get_random_state()
        for stage in stages:
            self._check(stage)
        # Checks must not change the random numbers of the training.
        set_random_state(random_state)

    def train(self) -> dict[str, Any]:
        """Trains all stages that are not finished yet, and leaves the model with the last one's best weights."""
        self._metrics, self._summaries, self._seconds = {}, {}, 0.0
        try:
            for number, stage in enumerate(self.stages, 1):
                with stage.objective_in(self.model):
                    self._run(stage, number)
        finally:
            if self._metrics:
                self.final_metrics = self._conclude()
        assert self.final_metrics is not None
        return self.final_metrics

    def evaluate(self, data_loader: Any, description: str = "evaluation") -> dict[str, float]:
        """The metrics of the model with its present weights; the loss is the last stage's, as in validation."""
        with self.stages[-1].objective_in(self.model):
            return evaluate(self.model, data_loader, self.accelerator, description)

    def _run(self, stage: Stage, number: int) -> None:
        """Trains a stage; the trainer of a finished one restores its checkpoint and has no epoch left."""
        trainer = self.build(stage)
        if hasattr(self, "data"):
            trainer.data = self.data
        counts = trainer.parameter_counts
        title = f'stage {number} of {len(self.stages)}, "{stage.name}"'
        logger.info("%s: %s trainable parameters, %s frozen", title, *map("{:,}".format, counts))
        try:
            trainer.train()
        finally:
            trainer.release()
            if trainer.final_metrics is not None:
                tracker = trainer.metric_tracker
                self._latest, self._metrics = stage, trainer.final_metrics
                self._seconds += trainer.seconds
                summary = {
                    "best_epoch": tracker.best_epoch,
                    "training_duration": str(datetime.timedelta(seconds=trainer.seconds)),
                    "trainable_parameters": counts[0],
                    **{f"best_validation_{name}": value for name, value in tracker.best_epoch_metrics.items()},
                }
                self._summaries |= {f"stage_{stage.name}_{name}": value for name, value in summary.items()}
        if stage.require is not None:
            stage.require.check(trainer.metric_tracker.best_epoch_metrics, stage)

    def build(self, stage: Stage) -> GradientDescentTrainer:
        """The stage's trainer, for the model with its present weights."""
        self._free_parameters()
        options = {**self.defaults, **stage.options}
        callbacks = list(options.pop("callbacks", None) or [])
        if stage is self.stages[-1]:
            own = {"serialization_dir": self.serialization_dir}  # in place of the stage's directory
            callbacks += [
                Lazy(lambda make=callback, **extras: make.construct(**{**extras, **own})) for callback in self.callbacks
            ]
        trainer = GradientDescentTrainer(
            model=self.model,
            serialization_dir=stage.directory,
            data_loader=stage.loader,
            validation_data_loader=self.validation_data_loader,
            callbacks=callbacks,
            **options,
        )
        self.accelerator = trainer.accelerator
        return trainer

    def _check(self, stage: Stage) -> None:
        """Builds the stage's trainer and validates one batch, to find errors before the first stage is trained."""
        logger.info('Checking stage "%s"', stage.name)
        with stage.objective_in(self.model), stage.errors():
            if stage.own_objective is not None:
                self.model.check_objective()
            trainer = self.build(stage)
            try:
                metrics = trainer.check_validation()
            finally:
                trainer.release()
            if stage.require is not None and self.validation_data_loader is None:
                raise ConfigurationError("trainer.require needs validation data: set validation_data_path")
            if stage.require is not None and metrics is not None:
                check_choice("trainer.require.metric", stage.require.metric, metrics)

    def _conclude(self) -> dict[str, Any]:
        """Leaves the best weights of the latest stage that has any, in the model and on disk; returns the metrics."""
        self._free_parameters()
        with self._latest.objective_in(self.model):
            self.model.load_state_dict(load_torch(self._latest.directory / BEST_WEIGHTS))
        self.model.eval()
        # With the model's own objective, which the archive's config describes.
        if self.accelerator.is_main_process:
            save_torch(self.model.state_dict(), self.serialization_dir / BEST_WEIGHTS)
        return {**self._metrics, **self._summaries, "training_duration": str(datetime.timedelta(seconds=self._seconds))}

    def _free_parameters(self) -> None:
        for parameter, requires_grad in self._requires_grad:
            parameter.requires_grad_(requires_grad)
