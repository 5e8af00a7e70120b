"""Optimizers by AllenNLP's names: torch's own, over the parameter groups of a config."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable
from beem_plugin.training.parameter_groups import ParameterGroups, make_parameter_groups

NamedParameters = list[tuple[str, Parameter]]


class Optimizer(torch.optim.Optimizer, Registrable):
    """
    What changes the weights.

    Every implementation takes `model_parameters` from the trainer and, from the config, `parameter_groups`
    (see `make_parameter_groups`) beside its own options.
    """

    default_implementation = "adam"

    @staticmethod
    def groups(model_parameters: NamedParameters, parameter_groups: ParameterGroups | None) -> list[dict[str, Any]]:
        """The groups to optimize; freezes the parameters of groups with `requires_grad: false`."""
        groups = make_parameter_groups(model_parameters, parameter_groups)
        if not any(group["params"] for group in groups):
            raise ConfigurationError("optimizer: there is no trainable parameter to optimize")
        return groups


@Optimizer.register("adam")
class AdamOptimizer(Optimizer, torch.optim.Adam):
    """
    Registered as an `Optimizer` with name "adam", the default.

    # Parameters

    lr : `float`, optional (default = `0.001`)
    betas : `tuple[float, float]`, optional (default = `(0.9, 0.999)`)
    eps : `float`, optional (default = `1e-8`)
    weight_decay : `float`, optional (default = `0.0`)
    amsgrad : `bool`, optional (default = `False`)
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        torch.optim.Adam.__init__(
            self,
            self.groups(model_parameters, parameter_groups),
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
        )


@Optimizer.register("adamw")
class AdamWOptimizer(Optimizer, torch.optim.AdamW):
    """
    Adam with decoupled weight decay.

    Registered as an `Optimizer` with name "adamw" and, since transformers' own has gone, "huggingface_adamw" (whose
    defaults, `eps` 1e-6 and no decay, differ).

    # Parameters

    lr : `float`, optional (default = `0.001`)
    betas : `tuple[float, float]`, optional (default = `(0.9, 0.999)`)
    eps : `float`, optional (default = `1e-8`)
    weight_decay : `float`, optional (default = `0.01`)
    amsgrad : `bool`, optional (default = `False`)
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        torch.optim.AdamW.__init__(
            self,
            self.groups(model_parameters, parameter_groups),
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
        )


@Optimizer.register("huggingface_adamw")
class HuggingfaceAdamWOptimizer(AdamWOptimizer):
    """
    `adamw` with the defaults that configs written for transformers' AdamW rely on.

    Registered as an `Optimizer` with name "huggingface_adamw".

    # Parameters

    lr : `float`, optional (default = `1e-5`)
    betas : `tuple[float, float]`, optional (default = `(0.9, 0.999)`)
    eps : `float`, optional (default = `1e-8`)
    weight_decay : `float`, optional (default = `0.0`)
    correct_bias : `bool`, optional (default = `True`)
        Only `True` is possible.
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        lr: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        if not correct_bias:
            raise ConfigurationError("optimizer.correct_bias: found False, allowed: True")
        super().__init__(model_parameters, parameter_groups, lr, betas, eps, weight_decay)


@Optimizer.register("sgd")
class SgdOptimizer(Optimizer, torch.optim.SGD):
    """
    Registered as an `Optimizer` with name "sgd".

    # Parameters

    lr : `float`
    momentum : `float`, optional (default = `0.0`)
    dampening : `float`, optional (default = `0.0`)
    weight_decay : `float`, optional (default = `0.0`)
    nesterov : `bool`, optional (default = `False`)
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        lr: float,
        parameter_groups: ParameterGroups | None = None,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        torch.optim.SGD.__init__(
            self,
            self.groups(model_parameters, parameter_groups),
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )


@Optimizer.register("rmsprop")
class RmsPropOptimizer(Optimizer, torch.optim.RMSprop):
    """
    Registered as an `Optimizer` with name "rmsprop".

    # Parameters

    lr : `float`, optional (default = `0.01`)
    alpha : `float`, optional (default = `0.99`)
    eps : `float`, optional (default = `1e-8`)
    weight_decay : `float`, optional (default = `0.0`)
    momentum : `float`, optional (default = `0.0`)
    centered : `bool`, optional (default = `False`)
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        lr: float = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        torch.optim.RMSprop.__init__(
            self,
            self.groups(model_parameters, parameter_groups),
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
        )


@Optimizer.register("adagrad")
class AdagradOptimizer(Optimizer, torch.optim.Adagrad):
    """
    Registered as an `Optimizer` with name "adagrad".

    # Parameters

    lr : `float`, optional (default = `0.01`)
    lr_decay : `float`, optional (default = `0.0`)
    weight_decay : `float`, optional (default = `0.0`)
    initial_accumulator_value : `float`, optional (default = `0.0`)
    eps : `float`, optional (default = `1e-10`)
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        lr: float = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        torch.optim.Adagrad.__init__(
            self,
            self.groups(model_parameters, parameter_groups),
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
        )


@Optimizer.register("adadelta")
class AdadeltaOptimizer(Optimizer, torch.optim.Adadelta):
    """
    Registered as an `Optimizer` with name "adadelta".

    # Parameters

    lr : `float`, optional (default = `1.0`)
    rho : `float`, optional (default = `0.9`)
    eps : `float`, optional (default = `1e-6`)
    weight_decay : `float`, optional (default = `0.0`)
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        torch.optim.Adadelta.__init__(
            self, self.groups(model_parameters, parameter_groups), lr=lr, rho=rho, eps=eps, weight_decay=weight_decay
        )


@Optimizer.register("adamax")
class AdamaxOptimizer(Optimizer, torch.optim.Adamax):
    """
    Registered as an `Optimizer` with name "adamax".

    # Parameters

    lr : `float`, optional (default = `0.002`)
    betas : `tuple[float, float]`, optional (default = `(0.9, 0.999)`)
    eps : `float`, optional (default = `1e-8`)
    weight_decay : `float`, optional (default = `0.0`)
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        lr: float = 0.002,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        torch.optim.Adamax.__init__(
            self,
            self.groups(model_parameters, parameter_groups),
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
        )
