"""The state of a training run in a checkpoint."""

from __future__ import annotations

import logging
from typing import Any

from accelerate.utils import gather_object

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.metric_state import get_metric_state, set_metric_state
from beem_plugin.training.random_state import get_random_state, set_random_state
from beem_plugin.training.running_trainer import RunningTrainer

logger = logging.getLogger(__name__)


def run_state(trainer: RunningTrainer) -> dict[str, Any]:
    """Everything but the model's weights; all processes must take part."""
    scheduler, scaler = trainer.learning_rate_scheduler, trainer.accelerator.scaler
    return {
        "processes": gather_object([{"random": get_random_state(), "metrics": get_metric_state(trainer.model)}]),
        "optimizer": trainer.optimizer.state_dict(),
        "learning_rate_scheduler": scheduler and scheduler.state_dict(),
        "scaler": scaler and scaler.state_dict(),
        "metric_tracker": trainer.metric_tracker.state_dict(),
        "callbacks": [callback.state_dict() for callback in trainer.callbacks],
        "metrics": trainer.metrics,
        "epochs_completed": trainer.epochs_completed,
        "batches_in_epoch_completed": trainer.batches_in_epoch_completed,
        "steps_completed": trainer.steps_completed,
        "loss_sum": trainer.loss_sum,
        "samples": trainer.units,
        "seconds": trainer.seconds,
    }


def restore_run(trainer: RunningTrainer, model_state: dict[str, Any], state: dict[str, Any]) -> None:
    """
    Sets model, optimizer, scheduler, counters and random generators to those of a checkpoint.

    Raises `ConfigurationError` if the number of processes or the model's parameters differ.
    """
    processes = trainer.accelerator.num_processes
    if len(state["processes"]) != processes:
        raise ConfigurationError(
            f"the checkpoint in {trainer.serialization_dir} was written by {len(state['processes'])} process(es) and "
            f"can only be recovered by as many, found {processes}"
        )
    if model_state.keys() != trainer.model.state_dict().keys():
        # The optimizer's state depends on the order of the parameters, which may differ between releases.
        raise ConfigurationError(
            f"the checkpoint in {trainer.serialization_dir} has other parameters than the model; allowed: to recover a "
            "run under the version of transformers that it was started with"
        )
    trainer.model.load_state_dict(model_state)
    trainer.optimizer.load_state_dict(state["optimizer"])
    if trainer.learning_rate_scheduler is not None:
        trainer.learning_rate_scheduler.load_state_dict(state["learning_rate_scheduler"])
    if trainer.accelerator.scaler is not None and state["scaler"] is not None:
        trainer.accelerator.scaler.load_state_dict(state["scaler"])
    trainer.metric_tracker.load_state_dict(state["metric_tracker"])
    for callback, callback_state in zip(trainer.callbacks, state["callbacks"], strict=True):
        callback.load_state_dict(callback_state)
    for name in ("metrics", "epochs_completed", "batches_in_epoch_completed", "steps_completed", "loss_sum"):
        setattr(trainer, name, state[name])
    trainer.units = state["samples"]
    trainer.start_time -= state["seconds"]
    if trainer.steps_completed > 0:
        # As in the last step, so that a run that was complete is evaluated as before.
        trainer.model.start_step(trainer.steps_completed - 1, trainer.total_steps)
    own = state["processes"][trainer.accelerator.process_index]
    if own["metrics"] is not None:
        set_metric_state(trainer.model, own["metrics"])
    elif trainer.batches_in_epoch_completed > 0:
        logger.warning(
            "%s has no metric_state: the training metrics of epoch %d cover only its remaining batches",
            type(trainer.model).__name__,
            trainer.epochs_completed,
        )
    set_random_state(own["random"])
