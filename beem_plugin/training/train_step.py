"""One optimizer step over a window of accumulated batches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.models.model import Model
from beem_plugin.training.batches import EpochPlan
from beem_plugin.training.evaluation import loss_units, weighted_loss
from beem_plugin.training.metric_state import get_metric_state, set_metric_state
from beem_plugin.training.trainer import TrainingError


@dataclass
class Window:
    """
    The batches of one optimizer step.

    # Parameters

    inputs : `list[dict[str, Tensor]]`
        The batches, on the device.
    outputs : `list[dict[str, Any]]`
        The model's outputs for them.
    loss_sum : `float`
        Mean losses times units, over all processes.
    units : `int`
        Samples, or tokens where the loss is a mean over tokens, of all processes.
    """

    inputs: list[dict[str, Tensor]] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    loss_sum: float = 0.0
    units: int = 0


def accumulate_gradients(
    model: Model,
    prepared_model: torch.nn.Module,
    accelerator: Accelerator,
    plan: EpochPlan,
    rounds: range,
    batches: Iterator[dict[str, Tensor]],
    own_backward: Callable[[dict[str, Any]], bool],
) -> Window:
    """
    Forward and backward passes of a window; the gradients are those of the mean over all its samples.

    # Parameters

    model : `Model`
    prepared_model : `torch.nn.Module`
        The accelerator's form of it.
    accelerator : `Accelerator`
    plan : `EpochPlan`
    rounds : `range`
        The window's rounds of the plan.
    batches : `Iterator[dict[str, Tensor]]`
        This process's batches, from the first of these rounds on.
    own_backward : `Callable[[dict[str, Any]], bool]`
        Called with the outputs before the backward pass; returns whether it has done it.
    """
    # All of the window is read first: the weight of a batch depends on the size of the others.
    read = [next(batches) for _ in rounds]
    units = [
        loss_units(model, batch, plan.samples(number), accelerator) for number, batch in zip(rounds, read, strict=True)
    ]
    window = Window(units=sum(map(sum, units)))
    for number, batch_read, counts in zip(rounds, read, units, strict=True):
        batch = send_to_device(batch_read, accelerator.device)
        is_last = number == rounds[-1]
        # A batch that repeats another process's must not enter the metrics.
        kept = get_metric_state(model) if plan.samples(number)[accelerator.process_index] == 0 else None
        with contextlib.nullcontext() if is_last else accelerator.no_sync(prepared_model):
            outputs = prepared_model(**batch)
            if kept is not None:
                set_metric_state(model, kept)
            loss = outputs.get("loss")
            if loss is None:
                raise ConfigurationError(
                    f"model: {type(model).__name__} returned no `loss` in training; do the training data have labels?"
                )
            loss_sum = weighted_loss(loss, counts, accelerator)
            if not math.isfinite(loss_sum):
                raise TrainingError(
                    f"the training loss is {loss_sum} in epoch {plan.epoch}, batch {number}: lower the learning rate, "
                    "set trainer.grad_norm, or look at the data"
                )
            # Data parallelism takes the mean over processes; this weight makes it the mean over the window's units.
            weight = counts[accelerator.process_index] * accelerator.num_processes / max(1, window.units)
            if not own_backward(outputs):
                accelerator.backward(loss if weight == 1.0 else loss * weight)
        window.loss_sum += loss_sum
        window.inputs.append(batch)
        window.outputs.append(outputs)
    return window


def clip_gradients(
    parameters: list[Tensor], grad_norm: float | bool | None, grad_clipping: float | None
) -> float | None:
    """Scales gradients to the norm and cuts them to the value; returns the norm before, where `grad_norm` is set."""
    norm: float | None = None
    if grad_norm:
        limit = math.inf if grad_norm is True else float(grad_norm)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
    if grad_clipping is not None:
        torch.nn.utils.clip_grad_value_(parameters, grad_clipping)
    return norm
