"""Adam for embeddings with sparse gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.optimizers import NamedParameters, Optimizer, make_optimizer_class

_TorchSparseAdam: Any = make_optimizer_class("sparse_adam", torch.optim.SparseAdam, "Sparse Adam.")


@Optimizer.register("sparse_adam")
class SparseAdamOptimizer(_TorchSparseAdam):
    """
    torch's SparseAdam: rows without a gradient keep their values and moments. All gradients must be sparse; for a model
    with dense gradients too, use "dense_sparse_adam" or "multi".

    Registered as an `Optimizer` with name "sparse_adam". The keys are those of `torch.optim.SparseAdam`.

    # Parameters

    lr : `float`, optional (default = `0.001`)
    betas : `tuple[float, float]`, optional (default = `(0.9, 0.999)`)
    eps : `float`, optional (default = `1e-8`)
    """

    def __init__(self, model_parameters: NamedParameters, **options: Any) -> None:
        super().__init__(model_parameters, **options)
        self._names = {parameter: name for name, parameter in model_parameters}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    raise ConfigurationError(
                        f'optimizer.type: found "sparse_adam", but the gradient of {self._names[parameter]!r} is '
                        'dense; allowed for it: "dense_sparse_adam" or "adam"'
                    )
        return super().step(closure)


@Optimizer.register("dense_sparse_adam")
class DenseSparseAdamOptimizer(SparseAdamOptimizer):
    """
    Adam for dense gradients and SparseAdam for sparse ones, parameter by parameter.

    Registered as an `Optimizer` with name "dense_sparse_adam".

    # Parameters

    lr, betas, eps
        As of "sparse_adam".
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
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
        values = gradient.values()
        # Rows without a gradient keep their values and moments.
        index = tuple(gradient.indices())
        new_mean = mean[index].lerp_(values, 1 - first)
        new_square = square[index].mul_(second).addcmul_(values, values, value=1 - second)
        mean[index], square[index] = new_mean, new_square
        parameter[index] -= size * new_mean / new_square.sqrt().add_(group["eps"])
