"""Gradient of a held-out loss with respect to the weights of the training loss's terms."""

from __future__ import annotations

from collections.abc import Callable

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
        The trained ones.
    terms : `Callable[[], Tensor]`
        `(terms,)`, at the present parameters; deterministic.
    held_out_loss : `Callable[[], Tensor]`
        The scalar L_val, likewise.
    weights : `Tensor`
        `(terms,)`
    learning_rate : `float`
    look_ahead : `bool`, optional (default = `False`)
        Whether g is taken at theta', which costs another gradient, or at theta (first order).
    average : `Callable[[Tensor], Tensor]`, optional (default = identity)
        The mean over processes.
    weighted : `Callable[[], Tensor]`, optional (default = from `terms`)
        The scalar sum_k a_k l_k with its gradient, for `look_ahead`; if given, `terms` needs no gradient.

    # Returns

    `Tensor`
        `(terms,)`, 0 if the held-out loss does not depend on the parameters.
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
        if look_ahead:
            loss = (weights.detach() * terms()).sum() if weighted is None else weighted()
            move(gradient_of(loss), -learning_rate)
        gradient = gradient_of(held_out_loss())
        norm = float(torch.sqrt(sum((value.double().square().sum() for value in gradient), torch.zeros(()))))
        if norm == 0.0:
            return torch.zeros_like(weights)
        epsilon = EPSILON / norm
        with torch.no_grad():
            move(gradient, epsilon)
            above = terms()
            move(gradient, -epsilon)
            below = terms()
    finally:
        with torch.no_grad():
            for parameter, copy in zip(parameters, copies, strict=True):
                parameter.copy_(copy)
    return average(-learning_rate * (above - below) / (2 * epsilon))


def through_softmax(gradient: Tensor, weights: Tensor) -> Tensor:
    """From the gradient of the weights, which are a softmax, to that of its logits."""
    return weights * (gradient - (weights * gradient).sum())
