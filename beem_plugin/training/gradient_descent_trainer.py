"""Builds a training loop from a config."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy
from beem_plugin.models.model import Model
from beem_plugin.training.batches import EpochPlan
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.callbacks.console_logger import ConsoleLoggerCallback
from beem_plugin.training.checkpointer import Checkpointer
from beem_plugin.training.launch import make_accelerator
from beem_plugin.training.learning_rate_schedulers import LearningRateScheduler
from beem_plugin.training.optimizers import Optimizer
from beem_plugin.training.parameter_groups import freeze, log_parameter_counts
from beem_plugin.training.trainer import Trainer
from beem_plugin.training.training_loop import TrainingLoop


@Trainer.register("gradient_descent", constructor="from_partial_objects")
class GradientDescentTrainer(TrainingLoop):
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
        A metric after "+" or "-"; a list is summed. The epoch with the highest value is the best one.
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
    moving_average, momentum_scheduler : optional
        Not supported: anything but `null` is an error.
    grad_scaling : `bool`, optional (default = `True`)
        fp16 always scales; `false` is an error.
    """

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
        """Freezes parameters before it builds the optimizer, and wraps the model after that."""
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
