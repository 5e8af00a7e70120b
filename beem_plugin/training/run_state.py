"""Checkpoints of a training run: saved, and restored in a recovery."""

import logging

from accelerate.utils import broadcast_object_list, gather_object

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.random_state import get_random_state, set_random_state
from beem_plugin.training.trainer import RunningTrainer

logger = logging.getLogger(__name__)

COUNTERS = ("metrics", "epochs_completed", "batches_in_epoch_completed", "steps_completed", "loss_sum")
PARTS = ("learning_rate_scheduler", "momentum_scheduler", "moving_average")
"""What a trainer may have or not, by the key of its state."""


def checkpoint_is_due(trainer: RunningTrainer) -> bool:
    """Whether the checkpointer saves within the epoch now; the same in all processes, whose clocks may differ."""
    if not trainer.checkpointer.saves_within_epochs:
        return False
    return bool(broadcast_object_list([trainer.checkpointer.is_due(trainer.batches_in_epoch_completed)])[0])


def save_checkpoint(trainer: RunningTrainer) -> None:
    """Writes weights and state; all processes must call it."""
    scaler = trainer.accelerator.scaler
    model_state = trainer.accelerator.get_state_dict(trainer.prepared_model)
    state = {
        "processes": gather_object([{"random": get_random_state(), "metrics": trainer.model.metric_state()}]),
        "optimizer": trainer.optimizer.state_dict(),
        **{name: (part := getattr(trainer, name)) and part.state_dict() for name in PARTS},
        "scaler": scaler and scaler.state_dict(),
        "metric_tracker": trainer.metric_tracker.state_dict(),
        "callbacks": [callback.state_dict() for callback in trainer.callbacks],
        "samples": trainer.units,
        "seconds": trainer.seconds,
        **{name: getattr(trainer, name) for name in COUNTERS},
    }
    trainer.checkpointer.mark_saved(trainer.batches_in_epoch_completed)
    if trainer.is_primary:
        trainer.checkpointer.save(trainer.epochs_completed, trainer.batches_in_epoch_completed, model_state, state)
    trainer.accelerator.wait_for_everyone()


def restore_checkpoint(trainer: RunningTrainer) -> None:
    """
    Restores the newest checkpoint, if there is one. Raises `ConfigurationError` if the number of processes or the
    model's parameters differ.
    """
    loaded = trainer.checkpointer.load()
    if loaded is None:
        return
    model_state, state = loaded
    processes, place = trainer.accelerator.num_processes, f"the checkpoint in {trainer.serialization_dir}"
    if len(state["processes"]) != processes:
        raise ConfigurationError(
            f"{place} was written by {len(state['processes'])} process(es) and can only be recovered by as many, "
            f"found {processes}"
        )
    if model_state.keys() != trainer.model.state_dict().keys():
        # The optimizer's state depends on the order of the parameters, which may differ between releases.
        raise ConfigurationError(
            f"{place} has other parameters than the model; allowed: to recover a run under the version of "
            "transformers that it was started with"
        )
    trainer.model.load_state_dict(model_state)
    trainer.optimizer.load_state_dict(state["optimizer"])
    for name in PARTS:
        if getattr(trainer, name) is not None:
            getattr(trainer, name).load_state_dict(state[name])
    if trainer.accelerator.scaler is not None and state["scaler"] is not None:
        trainer.accelerator.scaler.load_state_dict(state["scaler"])
    trainer.metric_tracker.load_state_dict(state["metric_tracker"])
    for callback, callback_state in zip(trainer.callbacks, state["callbacks"], strict=True):
        callback.load_state_dict(callback_state)
    for name in COUNTERS:
        setattr(trainer, name, state[name])
    trainer.units = state["samples"]
    trainer.start_time -= state["seconds"]
    if trainer.steps_completed > 0:
        # The state of the last step, so that a completed run is evaluated as before.
        trainer.model.start_step(trainer.steps_completed - 1, trainer.total_steps)
    own = state["processes"][trainer.accelerator.process_index]
    if own["metrics"] is not None:
        trainer.model.load_metric_state(own["metrics"])
    elif trainer.batches_in_epoch_completed > 0:
        logger.warning(
            "%s has no metric_state: the training metrics of epoch %d cover only its remaining batches",
            type(trainer.model).__name__,
            trainer.epochs_completed,
        )
    set_random_state(own["random"])
    trainer.checkpointer.mark_saved(trainer.batches_in_epoch_completed)
