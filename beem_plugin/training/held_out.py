"""Losses of a model on held-out batches, with other objectives than its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.models.model import Model
from beem_plugin.objectives import Objective
from beem_plugin.training.batches import EpochPlan
from beem_plugin.training.evaluation import metrics_unchanged


class HeldOutBatches:
    """
    The held-out batch of each update, a function of the update's number alone, so that a recovered run is unchanged.
    """

    def __init__(self, data_loader: Any, rank: int, num_processes: int) -> None:
        self._data_loader = data_loader
        self._rank = rank
        self._num_processes = num_processes
        self._plan = EpochPlan(data_loader, 0, rank, num_processes)
        self._rounds = len(self._plan)
        self._next = -1
        self._batches: Iterator[dict[str, Tensor]] = iter(())

    def get(self, number: int) -> tuple[dict[str, Tensor], float]:
        """This process's batch, and its weight in a mean over processes that equals the mean over all samples."""
        epoch, position = divmod(number, self._rounds)
        if number != self._next or position == 0:
            self._plan = EpochPlan(self._data_loader, epoch, self._rank, self._num_processes)
            self._batches = self._plan.batches(position)
        self._next = number + 1
        counts = self._plan.samples(position)
        return next(self._batches), counts[self._rank] * self._num_processes / sum(counts)


def mean_cross_entropy(outputs: ExitOutputs, label: Tensor) -> Tensor:
    """The mean over the exits and over the samples whose label is known."""
    logits = outputs.logits.float()[label >= 0]
    target = label[label >= 0].unsqueeze(1).expand(logits.shape[:2])
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum") / max(1, target.numel())


def count_of(batch: dict[str, Tensor]) -> int:
    """Number of samples in the batch; of captions, number of target tokens."""
    return len(batch["label"]) if "label" in batch else int(batch["attention_mask"][:, 1:].sum())


def measured(model: Model, batch: dict[str, Tensor], objective: Objective) -> dict[str, Tensor]:
    """The model's outputs with another objective; its own objective and its metrics are unchanged."""
    own = model.objective
    model.objective = objective
    try:
        with metrics_unchanged(model):
            return model(**batch)
    finally:
        model.objective = own


class TermLosses(Objective):
    """The (weighted) sum of the terms as loss, and each term, detached."""

    def __init__(self, terms: Callable[[ExitOutputs, Tensor], Tensor], weights: Tensor | None = None) -> None:
        super().__init__()
        self.terms = terms
        self.weights = weights

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        values = self.terms(outputs, label)
        total = values.sum() if self.weights is None else (self.weights * values).sum()
        return {"loss": total, **{f"term_{number}": value.detach() for number, value in enumerate(values)}}


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode within the block; restores the mode of every module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
