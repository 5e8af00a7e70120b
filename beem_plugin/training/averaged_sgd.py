"""Averaged stochastic gradient descent, torch's own."""

from __future__ import annotations

import torch

from beem_plugin.training.optimizers import NamedParameters, Optimizer
from beem_plugin.training.parameter_groups import ParameterGroups


@Optimizer.register("averaged_sgd")
class AveragedSgdOptimizer(Optimizer, torch.optim.ASGD):
    """
    torch's ASGD. As in AllenNLP, the averages stay in the optimizer's state: what is evaluated and archived are the
    weights themselves.

    Registered as an `Optimizer` with name "averaged_sgd".

    # Parameters

    lr : `float`, optional (default = `0.01`)
    lambd : `float`, optional (default = `1e-4`)
        The decay of the learning rate.
    alpha : `float`, optional (default = `0.75`)
        The power of that decay.
    t0 : `float`, optional (default = `1e6`)
        The step at which averaging starts.
    weight_decay : `float`, optional (default = `0.0`)
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        lr: float = 0.01,
        lambd: float = 0.0001,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
    ) -> None:
        torch.optim.ASGD.__init__(
            self,
            self.groups(model_parameters, parameter_groups),
            lr=lr,
            lambd=lambd,
            alpha=alpha,
            t0=t0,
            weight_decay=weight_decay,
        )
