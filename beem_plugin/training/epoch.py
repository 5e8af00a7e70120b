"""One epoch of training: windows of accumulated batches, an optimizer step for each."""

import contextlib
import datetime
import math
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import Tensor

from beem_plugin.common.archive_files import BEST_WEIGHTS
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write
from beem_plugin.common.progress import progress_bar
from beem_plugin.training import evaluation
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.checkpointer import checkpoint_is_due, save_checkpoint, save_torch
from beem_plugin.training.evaluation import EpochPlan
from beem_plugin.training.parameter_groups import frozen_modules_to_eval
from beem_plugin.training.trainer import RunningTrainer, TrainingError

BAR_REFRESH_SECONDS = 1.0
JSON_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


@dataclass
class Window:
    """The batches of one optimizer step: sums over all processes, inputs and outputs of this process on its device."""

    units: int  # units of the loss (`Model.loss_units`)
    inputs: list[dict[str, Tensor]] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    loss_sum: float = 0.0  # mean losses times units


def run_epoch(trainer: RunningTrainer, epoch: int) -> None:
    """Trains and validates an epoch, and writes its metrics, the best weights and a checkpoint."""
    training = train_epoch(trainer, epoch)
    validation: dict[str, float] = {}
    score: float | None = None
    with contextlib.nullcontext() if trainer.moving_average is None else trainer.moving_average.applied():
        if trainer.validation_data_loader is not None:
            validation = trainer.evaluate(trainer.validation_data_loader, "validation")
            trainer.metric_tracker.add_metrics(validation)
            score = trainer.metric_tracker.combined_score(validation)
        else:
            trainer.metric_tracker.add_unmeasured_epoch()
        # The best weights are written before the checkpoint that names their epoch.
        if trainer.metric_tracker.is_best_so_far:
            weights = trainer.accelerator.get_state_dict(trainer.prepared_model)
            if trainer.is_primary:
                save_torch(weights, trainer.serialization_dir / BEST_WEIGHTS)
    best = trainer.metric_tracker.best_epoch_metrics
    metrics = {
        "best_epoch": trainer.metric_tracker.best_epoch,
        **_peak_memory(trainer.accelerator),
        "training_duration": str(datetime.timedelta(seconds=trainer.seconds)),
        "epoch": epoch,
        **{f"training_{name}": value for name, value in training.items()},
        **{f"validation_{name}": value for name, value in validation.items()},
        **{f"best_validation_{name}": value for name, value in best.items()},
    }
    if trainer.is_primary:
        write_metrics(trainer.serialization_dir / f"metrics_epoch_{epoch}.json", metrics)
    for scheduler in trainer.schedulers:
        scheduler.step(score)
    trainer.metrics = metrics
    trainer.complete_epoch()
    for callback in trainer.callbacks:
        callback.on_epoch(trainer, metrics=trainer.metrics, epoch=epoch, is_primary=trainer.is_primary)
    if trainer.checkpointer.save_completed_epochs:
        save_checkpoint(trainer)


def write_metrics(path: Path, metrics: dict[str, Any]) -> None:
    """Writes metrics as JSON; NaN and infinity become null."""
    with atomic_write(path, "wb") as file:
        file.write(orjson.dumps(metrics, option=JSON_OPTIONS))


def _peak_memory(accelerator: Accelerator) -> dict[str, float]:
    """`peak_worker_{rank}_memory_MB` and `peak_gpu_{rank}_memory_MB`; all processes must call it."""
    # Linux counts in KiB, macOS in bytes.
    unit = 1024**2 if sys.platform == "darwin" else 1024
    workers = gather_object([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit])
    peak = {f"peak_worker_{rank}_memory_MB": value for rank, value in enumerate(workers)}
    if accelerator.device.type == "cuda":
        cards = gather_object([torch.cuda.max_memory_allocated(accelerator.device) / 1024**2])
        peak.update({f"peak_gpu_{rank}_memory_MB": value for rank, value in enumerate(cards)})
    return peak


def train_epoch(trainer: RunningTrainer, epoch: int) -> dict[str, float]:
    """Trains from the first batch that is not completed; returns the epoch's loss and the model's metrics."""
    model, size = trainer.model, trainer.num_gradient_accumulation_steps
    plan = EpochPlan(trainer.data_loader, epoch, trainer.accelerator.process_index, trainer.accelerator.num_processes)
    listeners = [each for each in trainer.callbacks if type(each).on_batch is not TrainerCallback.on_batch]
    trainer.prepared_model.train()
    model.train()
    frozen_modules_to_eval(model)
    first = trainer.batches_in_epoch_completed
    batches = plan.batches(first)
    next_refresh = time.monotonic()
    with progress_bar(len(plan), f"epoch {epoch}", disable=not trainer.is_primary, initial=first) as bar:
        for start in range(first, len(plan), size):
            end = min(start + size, len(plan))
            model.start_step(trainer.steps_completed, trainer.total_steps)
            trainer.prepared_optimizer.zero_grad()
            window = _accumulate_gradients(trainer, plan, range(start, end), batches)
            trainer.loss_sum += window.loss_sum
            trainer.units += window.units
            grad_norm = _step(trainer)
            trainer.steps_completed += 1
            if trainer.moving_average is not None:
                trainer.moving_average.apply(trainer.steps_completed)
            trainer.batches_in_epoch_completed = end
            bar.update(end - start)
            is_refresh_due = time.monotonic() >= next_refresh or end == len(plan)
            if listeners or is_refresh_due:
                running = {**model.get_metrics(), "batch_loss": window.loss_sum / max(1, window.units)}
                running["loss"] = trainer.loss_sum / trainer.units
            if is_refresh_due:
                bar.set_description(f"epoch {epoch} {evaluation.description_from_metrics(running)}", refresh=False)
                next_refresh = time.monotonic() + BAR_REFRESH_SECONDS
            for callback in listeners:
                callback.on_batch(
                    trainer,
                    batch_inputs=window.inputs,
                    batch_outputs=window.outputs,
                    batch_metrics=running,
                    epoch=epoch,
                    batch_number=end,
                    is_training=True,
                    is_primary=trainer.is_primary,
                    batch_grad_norm=grad_norm,
                )
            if end < len(plan) and checkpoint_is_due(trainer):
                save_checkpoint(trainer)
    evaluation.merge_metrics(model, trainer.accelerator, "training ")
    metrics = {name: float(value) for name, value in model.get_metrics(reset=True).items()}
    return {"loss": trainer.loss_sum / trainer.units, **metrics}


def _accumulate_gradients(
    trainer: RunningTrainer, plan: EpochPlan, rounds: range, batches: Iterator[dict[str, Tensor]]
) -> Window:
    """Forward and backward passes of a window; the gradients are those of the mean loss over all its units."""
    accelerator, model = trainer.accelerator, trainer.model
    # All batches are read first: the weight of each depends on the sizes of the others.
    read = [next(batches) for _ in rounds]
    units = [
        evaluation.loss_units(model, batch, plan.samples(number), accelerator) for number, batch in zip(rounds, read)
    ]
    window = Window(sum(map(sum, units)))
    for number, batch, counts in zip(rounds, (send_to_device(batch, accelerator.device) for batch in read), units):
        is_last = number == rounds[-1]
        with contextlib.nullcontext() if is_last else accelerator.no_sync(trainer.prepared_model):
            # A batch that repeats another process's must not change the metrics.
            with evaluation.metrics_unchanged(model, plan.samples(number)[accelerator.process_index] == 0):
                outputs = trainer.prepared_model(**batch)
            loss = outputs.get("loss")
            if loss is None:
                raise ConfigurationError(
                    f"model: {type(model).__name__} returned no `loss` in training; do the training data have labels?"
                )
            loss_sum = evaluation.weighted_loss(loss, counts, accelerator)
            if not math.isfinite(loss_sum):
                raise TrainingError(
                    f"the training loss is {loss_sum} in epoch {plan.epoch}, batch {number}: lower the learning rate, "
                    "set trainer.grad_norm, or look at the data"
                )
            # Data parallelism takes the mean over processes; this weight makes it the mean over the window's units.
            weight = counts[accelerator.process_index] * accelerator.num_processes / max(1, window.units)
            called = False
            for callback in trainer.callbacks:
                called = callback.on_backward(trainer, batch_outputs=outputs, backward_called=called) or called
            if not called:
                accelerator.backward(loss if weight == 1.0 else loss * weight)
        window.loss_sum += loss_sum
        window.inputs.append(batch)
        window.outputs.append(outputs)
    return window


def _step(trainer: RunningTrainer) -> float | None:
    """Clips the gradients and makes one optimizer step; returns the gradient norm if `grad_norm` is set."""
    trained = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    norm: float | None = None
    if trainer.grad_norm or trainer.grad_clipping is not None:
        trainer.accelerator.unscale_gradients(trainer.prepared_optimizer)
    if trainer.grad_norm:
        limit = math.inf if trainer.grad_norm is True else float(trainer.grad_norm)
        norm = float(torch.nn.utils.clip_grad_norm_(trained, limit))
    if trainer.grad_clipping is not None:
        torch.nn.utils.clip_grad_value_(trained, trainer.grad_clipping)
    # Before the step, as in AllenNLP: the first step has the rate of step 1, the last one the rate of the last.
    for scheduler in trainer.schedulers:
        scheduler.step_batch()
    trainer.prepared_optimizer.step()
    return norm
