"""An objective over a vocabulary, computed in chunks of tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives.objective import Objective

CHUNK_ELEMENTS = 2**24  # logits in memory at a time: 64 MiB in float32, of which an objective makes about eight copies


@dataclass
class ChunkedLoss:
    loss: Tensor  # a scalar, the mean over the tokens
    components: dict[str, Tensor]  # the objective's other values, detached, as means over the tokens
    predictions: Tensor  # (tokens, exits) int64, each exit's most probable token
    negative_log_likelihood: Tensor  # (tokens, exits) float32, of the target, in nats


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

    The loss must be a mean of per-sample losses. `features` are `(tokens, size)`, `weights` `(words, size)`, of which
    exits may share one, `target` `(tokens,)`, all known; `pooled` and `extras` those of `ExitOutputs`, tokens first.
    """
    extras = extras or {}
    exits, chunk = len(features), max(1, chunk_elements // (len(weights) * weights[0].shape[0]))
    distinct = list({id(weight): weight for weight in weights}.values())
    order = {id(weight): index for index, weight in enumerate(distinct)}
    weight_of = [order[id(weight)] for weight in weights]
    of_tokens = [*features, *pooled, *(tensor for tensors in extras.values() for tensor in tensors)]
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    tensors = [*of_tokens, *distinct, *trained]
    train = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    shared = [*(leaf(weight, train) for weight in distinct), *trained]
    # Also without tokens: distributed training waits for a gradient of every parameter.
    grads = [torch.zeros_like(tensor) if train and tensor.requires_grad else None for tensor in tensors]
    used = set(range(len(of_tokens)))
    total = features[0].new_zeros((), dtype=torch.float32)
    components: dict[str, Tensor] = {}
    predictions = [target.new_zeros(0, exits)]
    likelihoods = [total.new_zeros(0, exits)]
    for start in range(0, len(target), chunk):
        rows = slice(start, start + chunk)
        labels = target[rows]
        with torch.set_grad_enabled(train):
            parts = [leaf(tensor[rows], train and tensor.requires_grad) for tensor in of_tokens]
            rest = iter(parts[exits + len(pooled) :])
            outputs = ExitOutputs(
                all_logits(parts[:exits], shared[: len(distinct)], weight_of),
                parts[exits : exits + len(pooled)],
                extras={name: [next(rest) for _ in values] for name, values in extras.items()},
            )
            values = objective.loss(outputs, labels)
            loss = values.pop("loss") * len(labels)
        total += loss.detach()
        for name, value in values.items():
            components[name] = components.get(name, 0) + value.detach() * len(labels) / len(target)
        logits = outputs.logits.detach()  # (chunk, exits, words)
        chosen = logits.gather(2, labels.view(-1, 1, 1).expand(-1, exits, 1)).squeeze(2)
        likelihoods.append(logits.logsumexp(-1) - chosen)
        predictions.append(logits.argmax(-1))
        if not train:
            continue
        spans: list[Any] = [*[rows] * len(parts), *[...] * len(shared)]
        pairs = [(n, one) for n, (one, grad) in enumerate(zip([*parts, *shared], grads)) if grad is not None]
        found = torch.autograd.grad(loss, [tensor for _, tensor in pairs], allow_unused=True)
        for (number, _), new in zip(pairs, found):
            if new is not None:
                grads[number][spans[number]] += new  # type: ignore[index]
                used.add(number)
    if len(target):  # a weight that no loss uses gets none: an optimizer would decay it
        grads = [grad if number in used else None for number, grad in enumerate(grads)]
    count = max(len(target), 1)
    mean = _WithGradients.apply(total / count, count, grads, *tensors) if train else total / count
    return ChunkedLoss(mean, components, torch.cat(predictions), torch.cat(likelihoods))


class _WithGradients(torch.autograd.Function):
    """A loss whose gradients, times `count`, are given."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, count: int, grads: list[Tensor | None], *tensors: Tensor) -> Tensor:
        ctx.count, ctx.grads = count, grads
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad_outputs[0] / ctx.count
        grads = [None if grad is None else grad * scale.to(grad.dtype) for grad in ctx.grads]
        ctx.grads = None
        return None, None, None, *grads


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
