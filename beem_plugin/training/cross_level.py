"""Gradient of a held-out loss with respect to the weights of the training loss's terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

EPSILON = 0.01
"""DARTS, section 2.3: the step of the finite difference is this, divided by the norm of the gradient."""


def term_weight_gradient(
    parameters: list[Tensor],
    terms: Callable[[], Tensor],
    held_out_loss: Callable[[], Tensor],
    weights: Tensor,
    learning_rate: float,
    look_ahead: bool = False,
    average: Callable[[Tensor], Tensor] = lambda value: value,
    weighted: Callable[[], Tensor] | None = None,
) -> Tensor:
    """
    With theta the parameters, l_k the terms, a_k their weights and xi the learning rate,

        theta' = theta - xi grad sum_k a_k l_k(theta),    g = grad L_val(theta'),
        dL_val(theta')/da_k = -xi g . grad l_k(theta) ~ -xi (l_k(theta + eps g) - l_k(theta - eps g)) / (2 eps):

    the approximation of DARTS (Liu et al. 2019, Eq. 8), for all terms at once with two evaluations. The parameters are
    restored exactly.

    # Parameters

    parameters : `list[Tensor]`
        Those that are trained.
    terms : `Callable[[], Tensor]`
        `(terms,)`, at the parameters as they are when it is called; deterministic.
    held_out_loss : `Callable[[], Tensor]`
        The scalar L_val, likewise.
    weights : `Tensor`
        `(terms,)`
    learning_rate : `float`
    look_ahead : `bool`, optional (default = `False`)
        Whether g is taken at theta', which costs another gradient, or at theta (first order).
    average : `Callable[[Tensor], Tensor]`, optional (default = nothing)
        The mean over processes.
    weighted : `Callable[[], Tensor]`, optional (default = from `terms`)
        The scalar sum_k a_k l_k with its gradient, for `look_ahead`; where it is given, `terms` needs none.

    # Returns

    `Tensor`
        `(terms,)`, 0 where the held-out loss does not depend on the parameters.
    """
    with _kept(parameters) as restore:
        if look_ahead:
            loss = (weights.detach() * terms()).sum() if weighted is None else weighted()
            step = _gradient(loss, parameters, average)
            _move(parameters, step, -learning_rate)
        gradient = _gradient(held_out_loss(), parameters, average)
        restore()
        norm = float(torch.sqrt(sum((value.double().square().sum() for value in gradient), torch.zeros(()))))
        if norm == 0.0:
            return torch.zeros_like(weights)
        epsilon = EPSILON / norm
        with torch.no_grad():
            _move(parameters, gradient, epsilon)
            above = terms()
            restore()
            _move(parameters, gradient, -epsilon)
            below = terms()
    return average(-learning_rate * (above - below) / (2 * epsilon))


def through_softmax(gradient: Tensor, weights: Tensor) -> Tensor:
    """From the gradient of the weights, which are a softmax, to that of its logits."""
    return weights * (gradient - (weights * gradient).sum())


def _gradient(loss: Tensor, parameters: list[Tensor], average: Callable[[Tensor], Tensor]) -> list[Tensor]:
    if not loss.requires_grad:
        found: list[Tensor | None] = [None] * len(parameters)
    else:
        found = list(torch.autograd.grad(loss, parameters, allow_unused=True))
    return [
        average(torch.zeros_like(parameter) if value is None else value)
        for parameter, value in zip(parameters, found, strict=True)
    ]


def _move(parameters: list[Tensor], direction: list[Tensor], factor: float) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, direction, strict=True):
            parameter.add_(value, alpha=factor)


@contextmanager
def _kept(parameters: list[Tensor]) -> Iterator[Callable[[], None]]:
    """Restores parameters from copies; opposite steps would leave rounding errors."""
    copies = [parameter.detach().clone() for parameter in parameters]

    def restore() -> None:
        with torch.no_grad():
            for parameter, value in zip(parameters, copies, strict=True):
                parameter.copy_(value)

    try:
        yield restore
    finally:
        restore()
