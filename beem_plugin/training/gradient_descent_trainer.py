"""The training loop."""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, send_to_device

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy
from beem_plugin.models.model import Model
from beem_plugin.training.batches import EpochPlan
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.callbacks.console_logger import ConsoleLoggerCallback
from beem_plugin.training.checkpointer import BEST_WEIGHTS, Checkpointer, load_torch, save_torch
from beem_plugin.training.evaluation import evaluate, loss_units, weighted_loss
from beem_plugin.training.launch import make_accelerator
from beem_plugin.training.learning_rate_schedulers import LearningRateScheduler
from beem_plugin.training.metric_state import get_metric_state, merge_metric_states, set_metric_state
from beem_plugin.training.metric_tracker import MetricTracker
from beem_plugin.training.metrics_file import write_metrics
from beem_plugin.training.optimizers import Optimizer
from beem_plugin.training.parameter_groups import freeze, frozen_modules_to_eval, log_parameter_counts
from beem_plugin.training.progress import description_from_metrics, progress_bar
from beem_plugin.training.random_state import get_random_state, separate_ranks, set_random_state
from beem_plugin.training.trainer import Trainer, TrainingError

logger = logging.getLogger(__name__)

BAR_REFRESH_SECONDS = 1.0


@Trainer.register("gradient_descent", constructor="from_partial_objects")
class GradientDescentTrainer(Trainer):
    """
    Gradient descent, on one device or, under `torchrun` or `accelerate launch`, on several.

    A run that is killed and started again with `--recover` ends with the metrics of an uninterrupted one, to the last
    digit: checkpoints hold weights, optimizer, scheduler, random generators, position in the data and running metrics.

    Registered as a `Trainer` with name "gradient_descent", the default.

    # Parameters

    model : `Model`
        Given, like `serialization_dir`, `data_loader` and `validation_data_loader`, by whoever builds the trainer.
        The `batch_size` of a loader is that of each process.
    num_epochs : `int`, optional (default = `20`)
    patience : `int`, optional (default = `None`)
        Stops when the validation metric was not better for this many epochs in a row.
    validation_metric : `str | list[str]`, optional (default = `"-loss"`)
        A metric after "+" or "-"; a list is summed. It decides which epoch is the best.
    optimizer : `Optimizer`, optional (default = `"adam"`)
    learning_rate_scheduler : `LearningRateScheduler`, optional (default = `None`)
    grad_norm : `float | bool`, optional (default = `None`)
        Gradients are scaled down to this norm; `true` only measures it.
    grad_clipping : `float`, optional (default = `None`)
        Gradients are cut to this absolute value.
    num_gradient_accumulation_steps : `int`, optional (default = `1`)
        Batches an optimizer step. Their losses are weighted by samples, those of captions by words: the step is that of
        one large batch, also in an incomplete last window.
    mixed_precision : `str`, optional (default = `"no"`)
        `"no"`, `"fp16"` (GPU only) or `"bf16"`.
    use_amp : `bool`, optional (default = `False`)
        AllenNLP's key for `mixed_precision: "fp16"`.
    no_grad : `list[str]`, optional (default = `None`)
        Parameters whose name contains a match of one of these regexes are frozen: no gradient, not in the optimizer,
        and modules with nothing but frozen parameters run without dropout.
    callbacks : `list[TrainerCallback]`, optional (default = `None`)
    enable_default_callbacks : `bool`, optional (default = `True`)
        Whether "console_logger" is added.
    checkpointer : `Checkpointer`, optional
    cuda_device : `int`, optional (default = `None`)
        -1 is the CPU, `None` the first GPU or else the CPU. Under a launcher the device is the launcher's.
    run_confidence_checks : `bool`, optional (default = `True`)
        Validates one batch before training, so that an unknown `validation_metric` is found at once.
    find_unused_parameters : `bool`, optional (default = `False`)
        For several processes and a model with trainable parameters that have no part in the loss of some batches.
    moving_average, momentum_scheduler : optional
        Not supported: anything but `null` is an error.
    grad_scaling : `bool`, optional (default = `True`)
        fp16 always scales; `false` is an error.
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
        self._loss_sum = 0.0
        self._units = 0
        self._start_time = time.monotonic()
        self._steps_per_epoch = math.ceil(len(self._plan(0)) / num_gradient_accumulation_steps)

    @classmethod
    def from_partial_objects(
        cls,
        model: Model,
        serialization_dir: str | Path,
        data_loader: Any,
        validation_data_loader: Any = None,
        num_epochs: int = 20,
        patience: int | None = None,
        validation_metric: str | list[str] = "-loss",
        optimizer: Lazy[Optimizer] | None = None,
        learning_rate_scheduler: Lazy[LearningRateScheduler] | None = None,
        grad_norm: float | bool | None = None,
        grad_clipping: float | None = None,
        num_gradient_accumulation_steps: int = 1,
        mixed_precision: str | None = None,
        use_amp: bool = False,
        no_grad: list[str] | None = None,
        callbacks: list[Lazy[TrainerCallback]] | None = None,
        enable_default_callbacks: bool = True,
        checkpointer: Lazy[Checkpointer] | None = None,
        cuda_device: int | None = None,
        run_confidence_checks: bool = True,
        find_unused_parameters: bool = False,
        moving_average: dict | None = None,
        momentum_scheduler: dict | None = None,
        grad_scaling: bool = True,
    ) -> GradientDescentTrainer:
        """Builds the parts in the order in which they need each other: freezing, optimizer, accelerator's wrapping."""
        for key, value in (("moving_average", moving_average), ("momentum_scheduler", momentum_scheduler)):
            if value is not None:
                raise ConfigurationError(f"trainer.{key}: not supported, allowed: null")
        if not grad_scaling:
            raise ConfigurationError('trainer.grad_scaling: found false, allowed: true ("bf16" needs no scaling)')
        if use_amp and mixed_precision not in (None, "fp16"):
            raise ConfigurationError('trainer.use_amp means mixed_precision "fp16": set one of the two')
        accelerator = make_accelerator(
            cuda_device, mixed_precision or ("fp16" if use_amp else "no"), find_unused_parameters
        )
        model.to(accelerator.device)
        built_callbacks = [callback.construct(serialization_dir=serialization_dir) for callback in callbacks or []]
        for callback in built_callbacks:
            callback.check_model(model)
        if enable_default_callbacks and not any(isinstance(c, ConsoleLoggerCallback) for c in built_callbacks):
            built_callbacks.append(ConsoleLoggerCallback(serialization_dir))
        for callback in built_callbacks:
            data_loader = callback.training_data(data_loader)
        freeze(model, no_grad or [])
        built_optimizer = (optimizer or Lazy(Optimizer)).construct(model_parameters=list(model.named_parameters()))
        log_parameter_counts(model)
        batches = len(EpochPlan(data_loader, 0, accelerator.process_index, accelerator.num_processes))
        if batches == 0:
            raise ConfigurationError("data_loader: there is no batch to train on")
        scheduler = learning_rate_scheduler and learning_rate_scheduler.construct(
            optimizer=built_optimizer,
            num_epochs=num_epochs,
            num_steps_per_epoch=math.ceil(batches / num_gradient_accumulation_steps),
        )
        if scheduler and scheduler.needs_validation_metric and validation_data_loader is None:
            raise ConfigurationError("trainer.learning_rate_scheduler needs validation data: set validation_data_path")
        return cls(
            model=model,
            optimizer=built_optimizer,
            data_loader=data_loader,
            serialization_dir=serialization_dir,
            accelerator=accelerator,
            checkpointer=(checkpointer or Lazy(Checkpointer)).construct(serialization_dir=serialization_dir),
            validation_data_loader=validation_data_loader,
            learning_rate_scheduler=scheduler or None,
            num_epochs=num_epochs,
            patience=patience,
            validation_metric=validation_metric,
            grad_norm=grad_norm,
            grad_clipping=grad_clipping,
            num_gradient_accumulation_steps=num_gradient_accumulation_steps,
            callbacks=built_callbacks,
            run_confidence_checks=run_confidence_checks,
        )

    @property
    def unwrapped_model(self) -> Model:
        """The model itself, not the form that the accelerator made of it."""
        return self.model

    @property
    def total_steps(self) -> int:
        """How many optimizer steps `num_epochs` epochs are."""
        return self._steps_per_epoch * self.num_epochs

    @property
    def seconds(self) -> float:
        """How long the training has taken, with what a run that was recovered took before."""
        return time.monotonic() - self._start_time

    def release(self) -> None:
        """Gives the model back as it was handed in, so that another trainer can have it."""
        self.accelerator.unwrap_model(self._prepared_model, keep_fp32_wrapper=False)
        self._prepared_model = self.model
        self.model.zero_grad(set_to_none=True)
        self.accelerator.free_memory()

    def train(self) -> dict[str, Any]:
        """
        Trains to the last epoch or until patience runs out, goes on from the newest checkpoint if there is one, loads
        the best weights and lets the callbacks finish.

        If an error or an interrupt comes after an epoch was completed, the best weights are loaded and `on_end` runs
        too, `final_metrics` is set, and the error is raised again. An error in a callback's `on_end` is raised when all
        callbacks have had their turn.
        """
        self._start_time = time.monotonic()
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
        # The best weights come before the checkpoint that says which epoch they are from.
        if self.metric_tracker.is_best_so_far:
            weights = self.accelerator.get_state_dict(self._prepared_model)
            if self.is_primary:
                save_torch(weights, self.serialization_dir / BEST_WEIGHTS)
        self.metrics, self.epochs_completed = metrics, epoch + 1
        self.batches_in_epoch_completed = 0
        self._loss_sum, self._units = 0.0, 0
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
                inputs, outputs, batch_loss = self._forward_and_backward(epoch, plan, rounds, batches)
                grad_norm = self._step()
                self.steps_completed += 1
                self.batches_in_epoch_completed = rounds[-1] + 1
                bar.update(len(rounds))
                is_refresh_due = time.monotonic() >= next_refresh or rounds[-1] + 1 == len(plan)
                if self._wants_batch_metrics or is_refresh_due:
                    running = {**self.model.get_metrics(), "batch_loss": batch_loss}
                    running["loss"] = self._loss_sum / self._units
                    if is_refresh_due:
                        bar.set_description(f"{description} {description_from_metrics(running)}", refresh=False)
                        next_refresh = time.monotonic() + BAR_REFRESH_SECONDS
                for callback in self.callbacks if self._wants_batch_metrics else []:
                    callback.on_batch(
                        self,
                        batch_inputs=inputs,
                        batch_outputs=outputs,
                        batch_metrics=running,
                        epoch=epoch,
                        batch_number=self.batches_in_epoch_completed,
                        is_training=True,
                        is_primary=self.is_primary,
                        batch_grad_norm=grad_norm,
                    )
                if self.batches_in_epoch_completed < len(plan) and self._checkpoint_is_due():
                    self._save_checkpoint()
        self._merge_metrics()
        metrics = {name: float(value) for name, value in self.model.get_metrics(reset=True).items()}
        return {"loss": self._loss_sum / self._units, **metrics}

    def _plan(self, epoch: int) -> EpochPlan:
        return EpochPlan(self.data_loader, epoch, self.accelerator.process_index, self.accelerator.num_processes)

    def _forward_and_backward(
        self, epoch: int, plan: EpochPlan, rounds: range, batches: Iterator[dict[str, torch.Tensor]]
    ) -> tuple[list[dict[str, torch.Tensor]], list[dict[str, Any]], float]:
        """One accumulation window; returns its batches, their outputs and the window's mean loss."""
        accelerator = self.accelerator
        # All of the window is read first: the share of a batch in it depends on what the others hold.
        read = [next(batches) for _ in rounds]
        units = [
            loss_units(self.model, batch, plan.samples(number), accelerator)
            for number, batch in zip(rounds, read, strict=True)
        ]
        window_units = max(1, sum(map(sum, units)))
        inputs, all_outputs, window_loss = [], [], 0.0
        self._prepared_optimizer.zero_grad()
        for number, batch_read, counts in zip(rounds, read, units, strict=True):
            batch = send_to_device(batch_read, accelerator.device)
            is_repeated = plan.samples(number)[accelerator.process_index] == 0
            is_last = number == rounds[-1]
            synchronize = contextlib.nullcontext() if is_last else accelerator.no_sync(self._prepared_model)
            # Only the samples that count may enter the metrics: a repeated batch must leave no trace.
            kept = get_metric_state(self.model) if is_repeated else None
            with synchronize:
                outputs = self._prepared_model(**batch)
                if kept is not None:
                    set_metric_state(self.model, kept)
                loss = outputs.get("loss")
                if loss is None:
                    raise ConfigurationError(
                        f"model: {type(self.model).__name__} returned no `loss` in training; "
                        "do the training data have labels?"
                    )
                loss_sum = weighted_loss(loss, counts, accelerator)
                if not math.isfinite(loss_sum):
                    raise TrainingError(
                        f"the training loss is {loss_sum} in epoch {epoch}, batch {number}: lower the learning rate, "
                        "set trainer.grad_norm, or look at the data"
                    )
                # Data parallelism takes the mean over processes; this makes it the mean over the window's samples (or
                # words, where the loss is a mean over words).
                weight = counts[accelerator.process_index] * accelerator.num_processes / window_units
                scaled = loss if weight == 1.0 else loss * weight
                called = False
                for callback in self.callbacks:
                    called = callback.on_backward(self, outputs, called) or called
                if not called:
                    accelerator.backward(scaled)
            window_loss += loss_sum
            self._loss_sum += loss_sum
            self._units += sum(counts)
            inputs.append(batch)
            all_outputs.append(outputs)
        return inputs, all_outputs, window_loss / window_units

    def _step(self) -> float | None:
        """One optimizer step; returns the gradient norm where it was asked for."""
        norm: float | None = None
        trained = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        if self.grad_norm or self.grad_clipping is not None:
            self.accelerator.unscale_gradients(self._prepared_optimizer)
        if self.grad_norm:
            limit = math.inf if self.grad_norm is True else float(self.grad_norm)
            norm = float(torch.nn.utils.clip_grad_norm_(trained, limit))
        if self.grad_clipping is not None:
            torch.nn.utils.clip_grad_value_(trained, self.grad_clipping)
        # Before the step, as in AllenNLP: the first step has the rate of step 1, the last one the rate of the last.
        if self.learning_rate_scheduler is not None:
            self.learning_rate_scheduler.step_batch()
        self._prepared_optimizer.step()
        return norm

    def _merge_metrics(self) -> None:
        """Gives every process the running metrics of all of them."""
        if self.accelerator.num_processes == 1:
            return
        state = get_metric_state(self.model)
        if state is None:
            logger.warning(
                "%s has no metric_state: its training metrics are those of one process", type(self.model).__name__
            )
            return
        set_metric_state(self.model, merge_metric_states(gather_object([state])))

    def _epoch_metrics(self, epoch: int, training: dict[str, float], validation: dict[str, float]) -> dict[str, Any]:
        metrics: dict[str, Any] = {"best_epoch": self.metric_tracker.best_epoch}
        metrics.update(self._peak_memory())
        metrics["training_duration"] = str(datetime.timedelta(seconds=self.seconds))
        metrics["epoch"] = epoch
        metrics.update({f"training_{name}": value for name, value in training.items()})
        metrics.update({f"validation_{name}": value for name, value in validation.items()})
        best = self.metric_tracker.best_epoch_metrics
        metrics.update({f"best_validation_{name}": value for name, value in best.items()})
        return metrics

    def _peak_memory(self) -> dict[str, float]:
        # Linux counts in KiB, macOS in bytes.
        unit = 1024**2 if sys.platform == "darwin" else 1024
        workers = gather_object([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit])
        peak = {f"peak_worker_{rank}_memory_MB": value for rank, value in enumerate(workers)}
        if self.accelerator.device.type == "cuda":
            cards = gather_object([torch.cuda.max_memory_allocated(self.accelerator.device) / 1024**2])
            peak.update({f"peak_gpu_{rank}_memory_MB": value for rank, value in enumerate(cards)})
        return peak

    # Before the first and after the last epoch

    def check_validation(self) -> dict[str, float] | None:
        """
        Validates one batch, so that an unknown metric or a shape that does not fit costs no epoch; returns its metrics.
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
        # Clocks differ between processes; all of them must take part in a checkpoint or none.
        due = [self.checkpointer.is_due(self.batches_in_epoch_completed)]
        return bool(broadcast_object_list(due)[0])

    def _save_checkpoint(self) -> None:
        own_state = {"random": get_random_state(), "metrics": get_metric_state(self.model)}
        process_states = gather_object([own_state])
        model_state = self.accelerator.get_state_dict(self._prepared_model)
        self.checkpointer.mark_saved(self.batches_in_epoch_completed)
        if self.is_primary:
            training_state = {
                "processes": process_states,
                "optimizer": self.optimizer.state_dict(),
                "learning_rate_scheduler": self.learning_rate_scheduler and self.learning_rate_scheduler.state_dict(),
                "scaler": self.accelerator.scaler and self.accelerator.scaler.state_dict(),
                "metric_tracker": self.metric_tracker.state_dict(),
                "callbacks": [callback.state_dict() for callback in self.callbacks],
                "metrics": self.metrics,
                "epochs_completed": self.epochs_completed,
                "batches_in_epoch_completed": self.batches_in_epoch_completed,
                "steps_completed": self.steps_completed,
                "loss_sum": self._loss_sum,
                "samples": self._units,
                "seconds": self.seconds,
            }
            self.checkpointer.save(self.epochs_completed, self.batches_in_epoch_completed, model_state, training_state)
        self.accelerator.wait_for_everyone()

    def _restore(self) -> None:
        loaded = self.checkpointer.load()
        if loaded is None:
            return
        model_state, state = loaded
        if len(state["processes"]) != self.accelerator.num_processes:
            raise ConfigurationError(
                f"the checkpoint in {self.serialization_dir} was written by {len(state['processes'])} process(es) and "
                f"can only be recovered by as many, found {self.accelerator.num_processes}"
            )
        if model_state.keys() != self.model.state_dict().keys():
            # The optimizer's state goes by the parameters' order, which another release may have changed, too.
            raise ConfigurationError(
                f"the checkpoint in {self.serialization_dir} has other parameters than the model; allowed: to "
                "recover a run under the version of transformers that it was started with"
            )
        self.model.load_state_dict(model_state)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.learning_rate_scheduler is not None:
            self.learning_rate_scheduler.load_state_dict(state["learning_rate_scheduler"])
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.metric_tracker.load_state_dict(state["metric_tracker"])
        for callback, callback_state in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(callback_state)
        self.metrics = state["metrics"]
        self.epochs_completed = state["epochs_completed"]
        self.batches_in_epoch_completed = state["batches_in_epoch_completed"]
        self.steps_completed = state["steps_completed"]
        self._loss_sum, self._units = state["loss_sum"], state["samples"]
        self._start_time -= state["seconds"]
        if self.steps_completed > 0:
            # The model is as it was in the last step: a run that was complete is evaluated as it was before.
            self.model.start_step(self.steps_completed - 1, self.total_steps)
        self.checkpointer.mark_saved(self.batches_in_epoch_completed)
        own = state["processes"][self.accelerator.process_index]
        if own["metrics"] is not None:
            set_metric_state(self.model, own["metrics"])
        elif self.batches_in_epoch_completed > 0:
            logger.warning(
                "%s has no metric_state: the training metrics of epoch %d cover only its remaining batches",
                type(self.model).__name__,
                self.epochs_completed,
            )
        set_random_state(own["random"])
