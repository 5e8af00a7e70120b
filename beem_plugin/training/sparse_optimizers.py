"""Adam for embeddings with sparse gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.optimizers import NamedParameters, Optimizer
from beem_plugin.training.parameter_groups import ParameterGroups


@Optimizer.register("sparse_adam")
class SparseAdamOptimizer(Optimizer, torch.optim.SparseAdam):
    """
    torch's SparseAdam: rows without a gradient, and their moments, stay as they are. All gradients must be sparse; for
    a model that has both kinds there are "dense_sparse_adam" and "multi".

    Registered as an `Optimizer` with name "sparse_adam".

    # Parameters

    lr : `float`, optional (default = `0.001`)
    betas : `tuple[float, float]`, optional (default = `(0.9, 0.999)`)
    eps : `float`, optional (default = `1e-8`)
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        torch.optim.SparseAdam.__init__(
            self, self.groups(model_parameters, parameter_groups), lr=lr, betas=betas, eps=eps
        )
        self._names = {parameter: name for name, parameter in model_parameters}

    # torch's own decorator, as on every optimizer's step, is not repeated: super().step has it.
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    raise ConfigurationError(
                        f'optimizer.type: found "sparse_adam", but the gradient of {self._names[parameter]!r} is '
                        'dense; allowed for it: "dense_sparse_adam" or "adam"'
                    )
        return torch.optim.SparseAdam.step(self, closure)


@Optimizer.register("dense_sparse_adam")
class DenseSparseAdamOptimizer(Optimizer):
    """
    Adam for dense gradients and SparseAdam for sparse ones, whichever a parameter has.

    Registered as an `Optimizer` with name "dense_sparse_adam".

    # Parameters

    lr : `float`, optional (default = `0.001`)
    betas : `tuple[float, float]`, optional (default = `(0.9, 0.999)`)
    eps : `float`, optional (default = `1e-8`)
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        for key, value, is_allowed, allowed in (
            ("lr", lr, lr > 0, "above 0"),
            ("eps", eps, eps > 0, "above 0"),
            ("betas", betas, all(0 <= beta < 1 for beta in betas), "from 0, below 1"),
        ):
            if not is_allowed:
                raise ConfigurationError(f"{key}: found {value!r}, allowed: {allowed}")
        groups = self.groups(model_parameters, parameter_groups)
        torch.optim.Optimizer.__init__(self, groups, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._change(parameter, parameter.grad, group)
        return loss

    def _change(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        first, second = group["betas"]
        size = group["lr"] * math.sqrt(1 - second ** state["step"]) / (1 - first ** state["step"])
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        if not gradient.is_sparse:
            mean.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            parameter.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-size)
            return
        gradient = gradient.coalesce()
        rows, values = gradient.indices(), gradient.values()
        if not len(values):
            return
        # Only the rows that have a gradient move, and only their moments decay.
        index = tuple(rows)
        new_mean = mean[index].lerp_(values, 1 - first)
        new_square = square[index].mul_(second).addcmul_(values, values, value=1 - second)
        mean[index], square[index] = new_mean, new_square
        parameter[index] -= size * new_mean / new_square.sqrt().add_(group["eps"])
