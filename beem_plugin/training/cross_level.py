"""Held-out losses, and their gradient with respect to the weights of the training loss's terms."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.models.model import Model
from beem_plugin.objectives import Objective
from beem_plugin.training.evaluation import EpochPlan, metrics_unchanged

EPSILON = 0.01
"""DARTS, section 2.3: the step of the finite difference is this, divided by the norm of the gradient."""


def term_weight_gradient(
    parameters: list[Tensor],
    terms: Callable[[], Tensor],
    held_out_loss: Callable[[], Tensor],
    learning_rate: float,
    weighted: Callable[[], Tensor] | None = None,
    average: Callable[[Tensor], Tensor] = lambda value: value,
) -> Tensor:
    """
    With theta the parameters, l_k the terms, a_k their weights and xi the learning rate,

        theta' = theta - xi grad sum_k a_k l_k(theta),    g = grad L_val(theta'),
        dL_val(theta')/da_k = -xi g . grad l_k(theta) ~ -xi (l_k(theta + eps g) - l_k(theta - eps g)) / (2 eps):

    DARTS (Liu et al. 2019, Eq. 8), `(terms,)`; 0 if the held-out loss does not depend on the parameters, which are
    restored exactly. `weighted()` is sum_k a_k l_k; without it g is taken at theta (first order). `average` is the mean
    over processes.
    """
    # Restored from copies: opposite steps would leave rounding errors.
    copies = [parameter.detach().clone() for parameter in parameters]

    def gradient_of(loss: Tensor) -> list[Tensor]:
        if not loss.requires_grad:
            return [torch.zeros_like(parameter) for parameter in parameters]
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return [average(value) for value in found]

    @torch.no_grad()
    def move(direction: list[Tensor], factor: float) -> None:
        for parameter, copy, value in zip(parameters, copies, direction, strict=True):
            parameter.copy_(copy).add_(value, alpha=factor)

    try:
        if weighted is not None:
            move(gradient_of(weighted()), -learning_rate)
        gradient = gradient_of(held_out_loss())
        norm = float(torch.sqrt(sum((value.double().square().sum() for value in gradient), torch.zeros(()))))
        epsilon = EPSILON / norm if norm else 0.0
        with torch.no_grad():
            move(gradient, epsilon)
            above = terms()
            move(gradient, -epsilon)
            below = terms()
    finally:
        with torch.no_grad():
            for parameter, copy in zip(parameters, copies, strict=True):
                parameter.copy_(copy)
    return average(-learning_rate * (above - below) / (2 * epsilon)) if norm else torch.zeros_like(above)


def through_softmax(gradient: Tensor, weights: Tensor) -> Tensor:
    """From the gradient of the weights, which are a softmax, to that of its logits."""
    return weights * (gradient - (weights * gradient).sum())


def held_out_batches(
    data_loader: Any, rank: int, num_processes: int, first: int = 0
) -> Iterator[tuple[dict[str, Tensor], float]]:
    """
    From update `first` on, this process's batch, and its weight in a mean over processes that equals the mean over all
    samples; a function of the update's number alone, so that a recovered run is unchanged.
    """
    epoch, start = divmod(first, len(EpochPlan(data_loader, 0, rank, num_processes)))
    for number in itertools.count(epoch):
        plan = EpochPlan(data_loader, number, rank, num_processes)
        for position, batch in enumerate(plan.batches(start), start):
            counts = plan.samples(position)
            yield batch, counts[rank] * num_processes / sum(counts)
        start = 0


def mean_cross_entropy(outputs: ExitOutputs, label: Tensor) -> Tensor:
    """The mean over the exits and over the samples whose label is known."""
    logits = outputs.logits.float()[label >= 0]
    target = label[label >= 0].unsqueeze(1).expand(logits.shape[:2])
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum") / max(1, target.numel())


def count_of(batch: dict[str, Tensor]) -> int:
    """Number of samples in the batch; of captions, number of target tokens."""
    return len(batch["label"]) if "label" in batch else int(batch["attention_mask"][:, 1:].sum())


def measured(
    model: Model,
    batch: dict[str, Tensor],
    terms: Callable[[ExitOutputs, Tensor], Tensor],
    weights: Tensor | None = None,
) -> dict[str, Tensor]:
    """The model's outputs with `TermLosses` as its objective; its own objective and its metrics are unchanged."""
    own, model.objective = model.objective, TermLosses(terms, weights)
    try:
        with metrics_unchanged(model):
            return model(**batch)
    finally:
        model.objective = own


class TermLosses(Objective):
    """The (weighted) sum of the terms as loss, and the terms, `(terms,)`, detached."""

    def __init__(self, terms: Callable[[ExitOutputs, Tensor], Tensor], weights: Tensor | None = None) -> None:
        super().__init__()
        self.terms = terms
        self.weights = weights

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        values = self.terms(outputs, label)
        total = values.sum() if self.weights is None else (self.weights * values).sum()
        return {"loss": total, "terms": values.detach()}
