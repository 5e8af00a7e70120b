"""Training by gradient descent: epochs with validation, checkpoints and callbacks."""

import logging
import math
import time
from pathlib import Path
from typing import Any

from beem_plugin.common.archive_files import BEST_WEIGHTS
from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.registry import Lazy
from beem_plugin.models.model import Model
from beem_plugin.training.callbacks.callback import ConsoleLoggerCallback, TrainerCallback
from beem_plugin.training.checkpointer import Checkpointer, load_torch, restore_checkpoint
from beem_plugin.training.epoch import run_epoch
from beem_plugin.training.evaluation import EpochPlan, evaluate
from beem_plugin.training.launch import make_accelerator
from beem_plugin.training.learning_rate_schedulers import LearningRateScheduler
from beem_plugin.training.metric_tracker import MetricTracker
from beem_plugin.training.moving_average import MovingAverage
from beem_plugin.training.optimizers import Optimizer
from beem_plugin.training.parameter_groups import count_parameters, freeze
from beem_plugin.training.random_state import get_random_state, separate_ranks, set_random_state
from beem_plugin.training.schedules import MomentumScheduler
from beem_plugin.training.trainer import RunningTrainer, Trainer

logger = logging.getLogger(__name__)


@Trainer.register("gradient_descent")
class GradientDescentTrainer(RunningTrainer):
    """
    Gradient descent, on one device or, under `torchrun` or `accelerate launch`, on several.

    A run that is killed and started again with `--recover` ends with exactly the metrics of an uninterrupted one:
    checkpoints hold weights, optimizer, scheduler, random generators, position in the data and running metrics.

    Registered as a `Trainer` with name "gradient_descent", the default.

    # Parameters

    model : `Model`
        Passed by the program, like `serialization_dir`, `data_loader` and `validation_data_loader`.
        The `batch_size` of a loader is that of each process.
    num_epochs : `int`, optional (default = `20`)
    patience : `int`, optional (default = `None`)
        Stops when the validation metric was not better for this many epochs in a row.
    validation_metric : `str | list[str]`, optional (default = `"-loss"`)
        A metric after "+" or "-"; a list is summed. The epoch with the highest value is the best one, of equal ones the
        last. Each exit has one, as in `["+accuracy", "+exit_1_accuracy"]`; a name alone is the last exit's.
    optimizer : `Optimizer`, optional (default = `"adam"`)
    learning_rate_scheduler : `LearningRateScheduler`, optional (default = `None`)
    grad_norm : `float | bool`, optional (default = `None`)
        Gradients are scaled down to this norm; `true` only measures it.
    grad_clipping : `float`, optional (default = `None`)
        Gradients are cut to this absolute value.
    num_gradient_accumulation_steps : `int`, optional (default = `1`)
        Batches an optimizer step. Losses are weighted by samples (captions: by tokens), so that the step is that of one
        large batch, also in an incomplete last window.
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
        Validates one batch before training, to find an unknown `validation_metric` early.
    find_unused_parameters : `bool`, optional (default = `False`)
        For several processes and a model with trainable parameters that do not contribute to the loss of some batches.
    moving_average : `MovingAverage`, optional (default = `None`)
        Averages of the weights, which are validated and kept in place of the last step's.
    momentum_scheduler : `MomentumScheduler`, optional (default = `None`)
    grad_scaling : `bool`, optional (default = `True`)
        fp16 always scales; `false` is an error.
    """

    def __init__(
        self,
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
        moving_average: Lazy[MovingAverage] | None = None,
        momentum_scheduler: Lazy[MomentumScheduler] | None = None,
        grad_scaling: bool = True,
    ) -> None:
        super().__init__(serialization_dir)
        if not grad_scaling:
            raise ConfigurationError('trainer.grad_scaling: found false, allowed: true ("bf16" needs no scaling)')
        if use_amp and mixed_precision not in (None, "fp16"):
            raise ConfigurationError('trainer.use_amp means mixed_precision "fp16": set one of the two')
        check_number("trainer.num_gradient_accumulation_steps", num_gradient_accumulation_steps, low=1)
        check_number("trainer.num_epochs", num_epochs, low=1)
        if patience is not None and validation_data_loader is None:
            raise ConfigurationError("trainer.patience needs validation data: set validation_data_path")
        precision = mixed_precision or ("fp16" if use_amp else "no")
        self.accelerator = make_accelerator(cuda_device, precision, find_unused_parameters)
        self.model = model.to(self.accelerator.device)
        self.metric_tracker = MetricTracker(validation_metric, patience)
        self.callbacks = [callback.construct(serialization_dir=serialization_dir) for callback in callbacks or []]
        for callback in self.callbacks:
            callback.check_model(model)
        if enable_default_callbacks and not any(isinstance(each, ConsoleLoggerCallback) for each in self.callbacks):
            self.callbacks.append(ConsoleLoggerCallback(serialization_dir))
        for callback in self.callbacks:
            data_loader = callback.training_data(data_loader)
        self.data_loader = data_loader
        self.validation_data_loader = validation_data_loader
        # Parameters are frozen before the optimizer takes them, and the accelerator wraps the model after that.
        freeze(model, no_grad or [])
        self.optimizer = (optimizer or Lazy(Optimizer)).construct(model_parameters=list(model.named_parameters()))
        self.parameter_counts = count_parameters(model)
        logger.info("Trainable parameters: %s, frozen parameters: %s", *map("{:,}".format, self.parameter_counts))
        batches = len(EpochPlan(data_loader, 0, self.accelerator.process_index, self.accelerator.num_processes))
        if batches == 0:
            raise ConfigurationError("data_loader: there is no batch to train on")
        self.num_epochs = num_epochs
        self.num_gradient_accumulation_steps = num_gradient_accumulation_steps
        self.steps_per_epoch = math.ceil(batches / num_gradient_accumulation_steps)
        self.learning_rate_scheduler, self.momentum_scheduler = (
            scheduler
            and scheduler.construct(  # type: ignore[attr-defined]
                optimizer=self.optimizer, num_epochs=num_epochs, num_steps_per_epoch=self.steps_per_epoch
            )
            for scheduler in (learning_rate_scheduler, momentum_scheduler)
        )
        if validation_data_loader is None and getattr(self.learning_rate_scheduler, "needs_validation_metric", False):
            raise ConfigurationError("trainer.learning_rate_scheduler needs validation data: set validation_data_path")
        self.checkpointer = (checkpointer or Lazy(Checkpointer)).construct(serialization_dir=serialization_dir)
        self.grad_norm = grad_norm
        self.grad_clipping = grad_clipping
        self.run_confidence_checks = run_confidence_checks
        self.prepared_model, self.prepared_optimizer = self.accelerator.prepare(model, self.optimizer)
        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.moving_average = moving_average and moving_average.construct(parameters=trained)

    def train(self) -> dict[str, Any]:
        """
        Trains from the newest checkpoint, if any, to the last epoch or until patience runs out, loads the best weights
        and calls the callbacks' `on_end`.

        After an error or an interrupt in a later epoch than the first, the best weights are loaded, `on_end` is called
        and `final_metrics` set, and the error is raised again. An error of an `on_end` is raised after all others ran.
        """
        self.start_time = time.monotonic()
        separate_ranks(self.accelerator.process_index)
        restore_checkpoint(self)
        for callback in self.callbacks:
            callback.on_start(self, is_primary=self.is_primary)
        try:
            for epoch in range(self.epochs_completed, self.num_epochs):
                if self.metric_tracker.should_stop_early():
                    logger.info("Ran out of patience. Stopping training.")
                    break
                run_epoch(self, epoch)
        except BaseException:
            if self.epochs_completed > 0:
                self._finish()
            raise
        self.accelerator.wait_for_everyone()
        error = self._finish()
        if error is not None:
            raise error
        return self.metrics

    def evaluate(
        self, data_loader: Any, description: str = "evaluation", max_rounds: int | None = None
    ) -> dict[str, float]:
        return evaluate(self.model, data_loader, self.accelerator, description, max_rounds, self.prepared_model)

    def check(self) -> None:
        self.check_validation()

    def check_validation(self) -> dict[str, float] | None:
        """Validates one batch to find an unknown metric or wrong shapes before training; returns its metrics."""
        if self.validation_data_loader is None or not self.run_confidence_checks:
            return None
        random_state = get_random_state()
        metrics = self.evaluate(self.validation_data_loader, description="", max_rounds=1)
        self.metric_tracker.combined_score(metrics)
        set_random_state(random_state)
        return metrics

    def release(self) -> None:
        """Removes the accelerator's wrapper from the model, so that another trainer can use it."""
        self._unwrap()
        self.model.zero_grad(set_to_none=True)
        self.accelerator.free_memory()

    def _finish(self) -> Exception | None:
        """Loads the best weights and runs `on_end`; returns the first error of a callback."""
        self._unwrap()
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

    def _unwrap(self) -> None:
        self.accelerator.unwrap_model(self.prepared_model, keep_fp32_wrapper=False)
        self.prepared_model = self.model
