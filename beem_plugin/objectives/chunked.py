"""An objective over a vocabulary, computed in chunks of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives.objective import Objective

CHUNK_ELEMENTS = 2**24
"""Logits in memory at a time: 64 MiB in float32, of which an objective makes about eight copies."""


@dataclass
class ChunkedLoss:
    """
    # Parameters

    loss : `Tensor`
        A scalar, the mean over the tokens.
    components : `dict[str, Tensor]`
        The objective's other values, detached, as means over the tokens.
    predictions : `Tensor`
        `(tokens, exits)` int64, each exit's most probable token.
    negative_log_likelihood : `Tensor`
        `(tokens, exits)` float32, of the target, in nats.
    """

    loss: Tensor
    components: dict[str, Tensor]
    predictions: Tensor
    negative_log_likelihood: Tensor


@dataclass
class _Plan:
    """The arguments of the autograd function beside tensors, and its results beside the loss."""

    objective: Objective
    target: Tensor
    weight_of: list[int]  # for each exit, which of the distinct weights
    num_weights: int
    num_pooled: int
    extras: dict[str, int]  # how many tensors each has
    chunk: int
    train: bool
    components: dict[str, Tensor] = field(default_factory=dict)
    predictions: list[Tensor] = field(default_factory=list)
    negative_log_likelihood: list[Tensor] = field(default_factory=list)

    @property
    def of_tokens(self) -> int:
        """The number of tensors with one row per token; they come first."""
        return len(self.weight_of) + self.num_pooled + sum(self.extras.values())

    def outputs(self, parts: Sequence[Tensor], weights: Sequence[Tensor]) -> ExitOutputs:
        """The outputs of all exits for a chunk of tokens."""
        rest = iter(parts[len(self.weight_of) :])
        pooled = [next(rest) for _ in range(self.num_pooled)]
        extras = {name: [next(rest) for _ in range(count)] for name, count in self.extras.items()}
        logits = all_logits(parts[: len(self.weight_of)], weights, self.weight_of)
        return ExitOutputs(logits, pooled, extras=extras)


def chunked_loss(
    objective: Objective,
    features: Sequence[Tensor],
    weights: Sequence[Tensor],
    target: Tensor,
    chunk_elements: int = CHUNK_ELEMENTS,
    pooled: Sequence[Tensor] = (),
    extras: Mapping[str, Sequence[Tensor]] | None = None,
) -> ChunkedLoss:
    """
    `objective` of the logits `features[i] @ weights[i].T` of all exits, without storing all of them: tokens are taken
    in chunks of `chunk_elements / (exits * words)`, and a chunk's gradient is taken before the next chunk's logits
    are made. The memory is the same for one exit and for twelve; no logit is computed twice.

    # Parameters

    objective : `Objective`
        Any whose loss is a mean of per-sample losses.
    features : `Sequence[Tensor]`
        For each exit `(tokens, size)`.
    weights : `Sequence[Tensor]`
        For each exit `(words, size)`; exits may share one.
    target : `Tensor`
        `(tokens,)` int64, all known.
    chunk_elements : `int`, optional (default = `2**24`)
    pooled, extras
        Of `ExitOutputs`, if the objective needs more than logits; the tokens first.
    """
    extras = extras or {}
    distinct = list({id(weight): weight for weight in weights}.values())
    order = {id(weight): index for index, weight in enumerate(distinct)}
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    of_tokens = [*features, *pooled, *(tensor for tensors in extras.values() for tensor in tensors)]
    tensors = [*of_tokens, *distinct, *trained]
    plan = _Plan(
        objective=objective,
        target=target,
        weight_of=[order[id(weight)] for weight in weights],
        num_weights=len(distinct),
        num_pooled=len(pooled),
        extras={name: len(tensors) for name, tensors in extras.items()},
        chunk=max(1, chunk_elements // (len(weights) * weights[0].shape[0])),
        train=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors),
    )
    loss = _ChunkedLoss.apply(plan, *tensors)
    empty = target.new_zeros(0, len(features))
    return ChunkedLoss(
        loss=loss,
        components={name: value / max(len(target), 1) for name, value in plan.components.items()},
        predictions=torch.cat(plan.predictions) if plan.predictions else empty,
        negative_log_likelihood=torch.cat(plan.negative_log_likelihood) if plan.predictions else empty.float(),
    )


class _ChunkedLoss(torch.autograd.Function):
    """Takes the gradient chunk by chunk in the forward pass; the backward pass only scales it."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> Tensor:
        of_tokens, others = tensors[: plan.of_tokens], tensors[plan.of_tokens :]
        weights = [leaf(weight, plan.train) for weight in others[: plan.num_weights]]
        trained = list(others[plan.num_weights :])
        token_grads = [torch.zeros_like(tensor) if tensor.requires_grad else None for tensor in of_tokens]
        shared_grads: list[Tensor | None] = [None for _ in others]
        total = of_tokens[0].new_zeros((), dtype=torch.float32)
        for start in range(0, len(plan.target), plan.chunk):
            rows = slice(start, start + plan.chunk)
            target = plan.target[rows]
            with torch.set_grad_enabled(plan.train):
                parts = [leaf(tensor[rows], plan.train and tensor.requires_grad) for tensor in of_tokens]
                outputs = plan.outputs(parts, weights)
                logits = outputs.logits  # (chunk, exits, words)
                values = plan.objective.loss(outputs, target)
                loss = values["loss"] * len(target)
            total += loss.detach()
            note(plan, logits.detach(), target, values)
            if not plan.train:
                continue
            inputs = [tensor for tensor in [*parts, *weights, *trained] if tensor.requires_grad]
            found = iter(torch.autograd.grad(loss, inputs, allow_unused=True))
            for part, grad in zip(parts, token_grads):
                if part.requires_grad:
                    value = next(found)
                    if value is not None and grad is not None:
                        grad[rows] = value
            for index, tensor in enumerate([*weights, *trained]):
                if tensor.requires_grad:
                    shared_grads[index] = added(shared_grads[index], next(found))
        if not len(plan.target):  # distributed training waits for a gradient of every parameter
            shared_grads = [torch.zeros_like(tensor) for tensor in others]
        ctx.count = max(len(plan.target), 1)
        ctx.grads = [*token_grads, *shared_grads]
        return total / ctx.count

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad_outputs[0] / ctx.count
        grads = [None if grad is None else grad * scale.to(grad.dtype) for grad in ctx.grads]
        ctx.grads = None
        return None, *grads


def leaf(tensor: Tensor, requires_grad: bool) -> Tensor:
    """The values of `tensor`, cut from its graph."""
    return tensor.detach().requires_grad_(requires_grad and tensor.requires_grad)


def all_logits(features: Sequence[Tensor], weights: Sequence[Tensor], weight_of: Sequence[int]) -> Tensor:
    """`(tokens, exits, words)` float32; exits with one weight in one product, so that it is read once."""
    if len(weights) == 1:
        return functional.linear(torch.stack(list(features), 1), weights[0]).float()
    logits: list[Tensor | None] = [None] * len(features)
    for index, weight in enumerate(weights):
        exits = [exit_index for exit_index, which in enumerate(weight_of) if which == index]
        together = functional.linear(torch.stack([features[exit_index] for exit_index in exits], 1), weight)
        for column, exit_index in enumerate(exits):
            logits[exit_index] = together[:, column]
    return torch.stack([value for value in logits if value is not None], 1).float()


def note(plan: _Plan, logits: Tensor, target: Tensor, values: dict[str, Tensor]) -> None:
    """Keeps what metrics and the log need of a chunk."""
    chosen = logits.gather(2, target.view(-1, 1, 1).expand(-1, logits.shape[1], 1)).squeeze(2)
    plan.negative_log_likelihood.append(logits.logsumexp(-1) - chosen)
    plan.predictions.append(logits.argmax(-1))
    for name, value in values.items():
        if name != "loss":
            plan.components[name] = plan.components.get(name, 0) + value.detach() * len(target)


def added(total: Tensor | None, value: Tensor | None) -> Tensor | None:
    if total is None or value is None:
        return total if value is None else value
    return total.add_(value)
