"""The training loop."""

from __future__ import annotations

import datetime
import logging
import math
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.models.model import Model
from beem_plugin.training.batches import EpochPlan
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.checkpointer import BEST_WEIGHTS, Checkpointer, load_torch, save_torch
from beem_plugin.training.evaluation import evaluate, merge_metrics
from beem_plugin.training.learning_rate_schedulers import LearningRateScheduler
from beem_plugin.training.metric_tracker import MetricTracker
from beem_plugin.training.metrics_file import peak_memory, write_metrics
from beem_plugin.training.parameter_groups import frozen_modules_to_eval
from beem_plugin.training.progress import description_from_metrics, progress_bar
from beem_plugin.training.random_state import get_random_state, separate_ranks, set_random_state
from beem_plugin.training.run_state import restore_run, run_state
from beem_plugin.training.train_step import accumulate_gradients, clip_gradients
from beem_plugin.training.trainer import Trainer

logger = logging.getLogger(__name__)

BAR_REFRESH_SECONDS = 1.0


class TrainingLoop(Trainer):
    """
    Epochs of gradient descent with validation, checkpoints and callbacks, from parts that are built and checked. The
    parameters are described at `GradientDescentTrainer`, which builds them from a config.
    """

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        data_loader: Any,
        serialization_dir: str | Path,
        accelerator: Accelerator,
        checkpointer: Checkpointer,
        validation_data_loader: Any = None,
        learning_rate_scheduler: LearningRateScheduler | None = None,
        num_epochs: int = 20,
        patience: int | None = None,
        validation_metric: str | list[str] = "-loss",
        grad_norm: float | bool | None = None,
        grad_clipping: float | None = None,
        num_gradient_accumulation_steps: int = 1,
        callbacks: list[TrainerCallback] | None = None,
        run_confidence_checks: bool = True,
    ) -> None:
        super().__init__(serialization_dir)
        if num_gradient_accumulation_steps < 1:
            raise ConfigurationError(
                f"trainer.num_gradient_accumulation_steps: found {num_gradient_accumulation_steps}, allowed: at least 1"
            )
        if num_epochs < 1:
            raise ConfigurationError(f"trainer.num_epochs: found {num_epochs}, allowed: at least 1")
        self.accelerator = accelerator
        self.model = model
        self.optimizer = optimizer
        self.data_loader = data_loader
        self.validation_data_loader = validation_data_loader
        self.checkpointer = checkpointer
        self.learning_rate_scheduler = learning_rate_scheduler
        self.num_epochs = num_epochs
        self.metric_tracker = MetricTracker(validation_metric, patience)
        if patience is not None and validation_data_loader is None:
            raise ConfigurationError("trainer.patience needs validation data: set validation_data_path")
        self.grad_norm = grad_norm
        self.grad_clipping = grad_clipping
        self.num_gradient_accumulation_steps = num_gradient_accumulation_steps
        self.callbacks = callbacks or []
        self.run_confidence_checks = run_confidence_checks
        self.is_primary = accelerator.is_main_process
        self._wants_batch_metrics = any(
            type(callback).on_batch is not TrainerCallback.on_batch for callback in self.callbacks
        )
        self._prepared_model, self._prepared_optimizer = accelerator.prepare(model, optimizer)
        self.metrics: dict[str, Any] = {}
        self.epochs_completed = 0
        self.batches_in_epoch_completed = 0
        self.steps_completed = 0
        self.loss_sum = 0.0
        self.units = 0
        self.start_time = time.monotonic()
        self._steps_per_epoch = math.ceil(len(self._plan(0)) / num_gradient_accumulation_steps)

    @property
    def unwrapped_model(self) -> Model:
        """The model without the accelerator's wrapping."""
        return self.model

    @property
    def total_steps(self) -> int:
        """Optimizer steps in `num_epochs` epochs."""
        return self._steps_per_epoch * self.num_epochs

    @property
    def seconds(self) -> float:
        """Duration of the training, that before a recovery included."""
        return time.monotonic() - self.start_time

    def release(self) -> None:
        """Removes the accelerator's wrapping from the model, so that another trainer can use it."""
        self.accelerator.unwrap_model(self._prepared_model, keep_fp32_wrapper=False)
        self._prepared_model = self.model
        self.model.zero_grad(set_to_none=True)
        self.accelerator.free_memory()

    def train(self) -> dict[str, Any]:
        """
        Trains from the newest checkpoint, if any, to the last epoch or until patience runs out, loads the best weights
        and calls the callbacks' `on_end`.

        After an error or an interrupt in a later epoch than the first, the best weights are loaded, `on_end` is called
        and `final_metrics` set, and the error is raised again. An error of an `on_end` is raised after all others ran.
        """
        self.start_time = time.monotonic()
        separate_ranks(self.accelerator.process_index)
        self.check_validation()
        self._restore()
        for callback in self.callbacks:
            callback.on_start(self, is_primary=self.is_primary)
        try:
            for epoch in range(self.epochs_completed, self.num_epochs):
                if self.metric_tracker.should_stop_early():
                    logger.info("Ran out of patience. Stopping training.")
                    break
                self._run_epoch(epoch)
        except BaseException:
            if self.epochs_completed > 0:
                error = self._finish()
                if error is not None:
                    logger.error("A callback failed after training had failed", exc_info=error)
            raise
        self.accelerator.wait_for_everyone()
        error = self._finish()
        if error is not None:
            raise error
        return self.metrics

    def evaluate(self, data_loader: Any, description: str = "evaluation") -> dict[str, float]:
        return evaluate(self.model, data_loader, self.accelerator, description, prepared_model=self._prepared_model)

    # One epoch

    def _run_epoch(self, epoch: int) -> None:
        training = self._train_epoch(epoch)
        validation: dict[str, float] = {}
        score: float | None = None
        if self.validation_data_loader is not None:
            validation = self.evaluate(self.validation_data_loader, "validation")
            self.metric_tracker.add_metrics(validation)
            score = self.metric_tracker.combined_score(validation)
        else:
            self.metric_tracker.add_unmeasured_epoch()
        metrics = self._epoch_metrics(epoch, training, validation)
        if self.is_primary:
            write_metrics(self.serialization_dir / f"metrics_epoch_{epoch}.json", metrics)
        if self.learning_rate_scheduler is not None:
            self.learning_rate_scheduler.step(score)
        # The best weights are written before the checkpoint that names their epoch.
        if self.metric_tracker.is_best_so_far:
            weights = self.accelerator.get_state_dict(self._prepared_model)
            if self.is_primary:
                save_torch(weights, self.serialization_dir / BEST_WEIGHTS)
        self.metrics, self.epochs_completed = metrics, epoch + 1
        self.batches_in_epoch_completed = 0
        self.loss_sum, self.units = 0.0, 0
        for callback in self.callbacks:
            callback.on_epoch(self, metrics=self.metrics, epoch=epoch, is_primary=self.is_primary)
        if self.checkpointer.save_completed_epochs:
            self._save_checkpoint()

    def _train_epoch(self, epoch: int) -> dict[str, float]:
        plan = self._plan(epoch)
        self._prepared_model.train()
        self.model.train()
        frozen_modules_to_eval(self.model)
        first = self.batches_in_epoch_completed
        batches = plan.batches(first)
        description = f"epoch {epoch}"
        bar = progress_bar(len(plan), description, disable=not self.is_primary, initial=first)
        next_refresh = time.monotonic()
        with bar:
            for start in range(first, len(plan), self.num_gradient_accumulation_steps):
                rounds = range(start, min(start + self.num_gradient_accumulation_steps, len(plan)))
                self.model.start_step(self.steps_completed, self.total_steps)
                self._prepared_optimizer.zero_grad()
                window = accumulate_gradients(
                    self.model, self._prepared_model, self.accelerator, plan, rounds, batches, self._own_backward
                )
                self.loss_sum += window.loss_sum
                self.units += window.units
                grad_norm = self._step()
                self.steps_completed += 1
                self.batches_in_epoch_completed = rounds[-1] + 1
                bar.update(len(rounds))
                is_refresh_due = time.monotonic() >= next_refresh or rounds[-1] + 1 == len(plan)
                if self._wants_batch_metrics or is_refresh_due:
                    running = {**self.model.get_metrics(), "batch_loss": window.loss_sum / max(1, window.units)}
                    running["loss"] = self.loss_sum / self.units
                    if is_refresh_due:
                        bar.set_description(f"{description} {description_from_metrics(running)}", refresh=False)
                        next_refresh = time.monotonic() + BAR_REFRESH_SECONDS
                for callback in self.callbacks if self._wants_batch_metrics else []:
                    callback.on_batch(
                        self,
                        batch_inputs=window.inputs,
                        batch_outputs=window.outputs,
                        batch_metrics=running,
                        epoch=epoch,
                        batch_number=self.batches_in_epoch_completed,
                        is_training=True,
                        is_primary=self.is_primary,
                        batch_grad_norm=grad_norm,
                    )
                if self.batches_in_epoch_completed < len(plan) and self._checkpoint_is_due():
                    self._save_checkpoint()
        merge_metrics(self.model, self.accelerator, "training ")
        metrics = {name: float(value) for name, value in self.model.get_metrics(reset=True).items()}
        return {"loss": self.loss_sum / self.units, **metrics}

    def _plan(self, epoch: int) -> EpochPlan:
        return EpochPlan(self.data_loader, epoch, self.accelerator.process_index, self.accelerator.num_processes)

    def _own_backward(self, outputs: dict[str, Any]) -> bool:
        called = False
        for callback in self.callbacks:
            called = callback.on_backward(self, outputs, called) or called
        return called

    def _step(self) -> float | None:
        """One optimizer step; returns the gradient norm where `grad_norm` is set."""
        if self.grad_norm or self.grad_clipping is not None:
            self.accelerator.unscale_gradients(self._prepared_optimizer)
        trained = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = clip_gradients(trained, self.grad_norm, self.grad_clipping)
        # Before the step, as in AllenNLP: the first step has the rate of step 1, the last one the rate of the last.
        if self.learning_rate_scheduler is not None:
            self.learning_rate_scheduler.step_batch()
        self._prepared_optimizer.step()
        return norm

    def _epoch_metrics(self, epoch: int, training: dict[str, float], validation: dict[str, float]) -> dict[str, Any]:
        metrics: dict[str, Any] = {"best_epoch": self.metric_tracker.best_epoch}
        metrics.update(peak_memory(self.accelerator))
        metrics["training_duration"] = str(datetime.timedelta(seconds=self.seconds))
        metrics["epoch"] = epoch
        metrics.update({f"training_{name}": value for name, value in training.items()})
        metrics.update({f"validation_{name}": value for name, value in validation.items()})
        best = self.metric_tracker.best_epoch_metrics
        metrics.update({f"best_validation_{name}": value for name, value in best.items()})
        return metrics

    # Before the first and after the last epoch

    def check_validation(self) -> dict[str, float] | None:
        """
        Validates one batch before training, to find an unknown metric or wrong shapes early; returns its metrics.
        """
        if self.validation_data_loader is None or not self.run_confidence_checks:
            return None
        random_state = get_random_state()
        metrics = evaluate(
            self.model,
            self.validation_data_loader,
            self.accelerator,
            description="",
            max_rounds=1,
            prepared_model=self._prepared_model,
        )
        self.metric_tracker.combined_score(metrics)
        set_random_state(random_state)
        return metrics

    def _finish(self) -> Exception | None:
        """Loads the best weights and runs `on_end`; returns the first error of a callback."""
        self.accelerator.unwrap_model(self._prepared_model, keep_fp32_wrapper=False)
        self._prepared_model = self.model
        self.model.load_state_dict(load_torch(self.serialization_dir / BEST_WEIGHTS))
        self.model.eval()
        first_error: Exception | None = None
        for callback in self.callbacks:
            try:
                callback.on_end(self, metrics=self.metrics, epoch=self.epochs_completed - 1, is_primary=self.is_primary)
            except Exception as error:
                logger.error("Callback %s failed at the end of training: %s", type(callback).__name__, error)
                first_error = first_error or error
        self.final_metrics = self.metrics
        return first_error

    # Checkpoints

    def _checkpoint_is_due(self) -> bool:
        if not self.checkpointer.saves_within_epochs:
            return False
        # Clocks differ between processes, and all of them must take part in a checkpoint.
        due = [self.checkpointer.is_due(self.batches_in_epoch_completed)]
        return bool(broadcast_object_list(due)[0])

    def _save_checkpoint(self) -> None:
        model_state = self.accelerator.get_state_dict(self._prepared_model)
        state = run_state(self)
        self.checkpointer.mark_saved(self.batches_in_epoch_completed)
        if self.is_primary:
            self.checkpointer.save(self.epochs_completed, self.batches_in_epoch_completed, model_state, state)
        self.accelerator.wait_for_everyone()

    def _restore(self) -> None:
        loaded = self.checkpointer.load()
        if loaded is not None:
            restore_run(self, *loaded)
            self.checkpointer.mark_saved(self.batches_in_epoch_completed)
