"""A model's loss and metrics on a data set, each sample counted once whatever the number of processes."""

from __future__ import annotations

import logging
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import Tensor

from beem_plugin.models.model import Model
from beem_plugin.training.batches import EpochPlan
from beem_plugin.training.metric_state import get_metric_state, merge_metric_states, set_metric_state
from beem_plugin.training.progress import description_from_metrics, progress_bar

logger = logging.getLogger(__name__)


def evaluate(
    model: Model,
    data_loader: Any,
    accelerator: Accelerator,
    description: str = "evaluation",
    max_rounds: int | None = None,
    prepared_model: torch.nn.Module | None = None,
) -> dict[str, float]:
    """
    The model's metrics, and `loss` where the model gives one: the mean over all samples, or over what else a model
    means by it (`Model.loss_units`). All processes return the same.

    # Parameters

    model : `Model`
        Keeps the metrics; left in evaluation mode.
    data_loader : `Any`
        A `beem_plugin.data` loader.
    accelerator : `Accelerator`
    description : `str`, optional (default = `"evaluation"`)
        For the progress bar; an empty one shows none.
    max_rounds : `int`, optional (default = `None`)
        Stops after so many batches of each process.
    prepared_model : `torch.nn.Module`, optional (default = `None`)
        The form of the model that the accelerator made, to be called instead of it.
    """
    forward = prepared_model if prepared_model is not None else model
    forward.eval()
    model.eval()
    plan = EpochPlan(data_loader, 0, accelerator.process_index, accelerator.num_processes)
    rounds = len(plan) if max_rounds is None else min(max_rounds, len(plan))
    loss_sum, units = 0.0, 0
    model.get_metrics(reset=True)
    batches = plan.batches()
    hidden = not description or not accelerator.is_main_process
    with torch.no_grad(), progress_bar(rounds, description, disable=hidden) as bar:
        for number in range(rounds):
            read = next(batches)
            counts = plan.samples(number)
            weights = loss_units(model, read, counts, accelerator)
            batch = send_to_device(read, accelerator.device)
            # A model that counts in `forward` must not count a batch that another process counts.
            kept = get_metric_state(model) if counts[accelerator.process_index] == 0 else None
            outputs = forward(**batch)
            if kept is not None:
                set_metric_state(model, kept)
            if outputs.get("loss") is not None:
                loss_sum += weighted_loss(outputs["loss"], weights, accelerator)
                units += sum(weights)
            update_metrics(model, outputs, batch, counts, accelerator)
            bar.update()
        if updates_metrics_itself(model):
            merge_metrics(model, accelerator)
        # numpy's numbers would not come back from a checkpoint that is loaded without running code.
        metrics = {name: float(value) for name, value in model.get_metrics(reset=True).items()}
        if units:
            metrics = {"loss": loss_sum / units, **metrics}
        bar.set_description(description_from_metrics(metrics) or description)
    return metrics


def loss_units(model: Model, batch: dict[str, Tensor], counts: list[int], accelerator: Accelerator) -> list[int]:
    """
    For each process what its batch's loss is the mean of, 0 where it only repeats another's.

    # Parameters

    model : `Model`
    batch : `dict[str, Tensor]`
        This process's, best before it is on a device: counting there would wait for it.
    counts : `list[int]`
        The samples of each process, which most models' losses are means of.
    accelerator : `Accelerator`
    """
    own = model.loss_units(batch)
    if own is None:
        return counts
    units = accelerator.gather(torch.tensor([own], device=accelerator.device)).tolist()
    return [number if count else 0 for number, count in zip(units, counts, strict=True)]


def weighted_loss(loss: Tensor, counts: list[int], accelerator: Accelerator) -> float:
    """The sum over processes of mean loss times units; processes that only repeat a batch count 0."""
    losses = accelerator.gather(loss.detach().double().reshape(1)).tolist()
    return sum(value * count for value, count in zip(losses, counts, strict=True) if count)


def updates_metrics_itself(model: Model) -> bool:
    """
    A model without `update_metrics`, as AllenNLP's are: `forward` counts, and only this process's samples. What all
    processes have counted is added up at the end, if the model can say it (`metric_state`).
    """
    return type(model).update_metrics is Model.update_metrics


def merge_metrics(model: Model, accelerator: Accelerator, which: str = "") -> None:
    """Gives every process the sum of the running metrics of all; `which` is for the warning of a model without any."""
    if accelerator.num_processes == 1:
        return
    state = get_metric_state(model)
    if state is None:
        logger.warning("%s has no metric_state: its %smetrics are those of one process", type(model).__name__, which)
        return
    set_metric_state(model, merge_metric_states(gather_object([state])))


def update_metrics(
    model: Model, outputs: dict[str, Any], batch: dict[str, Tensor], counts: list[int], accelerator: Accelerator
) -> None:
    """Hands the samples of all processes, in the order of the data, to the model's metrics."""
    label = batch.get("label")
    logits = outputs.get("logits")
    if label is None or logits is None or updates_metrics_itself(model):
        return
    model.update_metrics(_gather(logits, counts, accelerator), _gather(label, counts, accelerator))


def _gather(tensor: Tensor, counts: list[int], accelerator: Accelerator) -> Tensor:
    if accelerator.num_processes == 1:
        return tensor
    largest = max(counts)
    padded = tensor.new_zeros((largest, *tensor.shape[1:]))
    kept = min(largest, len(tensor))
    padded[:kept] = tensor[:kept]
    gathered = accelerator.gather(padded)
    parts = [gathered[rank * largest : rank * largest + count] for rank, count in enumerate(counts)]
    return torch.cat(parts)
