"""Optimizers of torch and transformers under AllenNLP's names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter
from transformers.optimization import Adafactor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable
from beem_plugin.common.signatures import EMPTY
from beem_plugin.training.parameter_groups import ParameterGroups, make_parameter_groups
from beem_plugin.training.rate_factors import with_rate_factors
from beem_plugin.training.trainer_keys import describe_keys, with_keys_of

NamedParameters = list[tuple[str, Parameter]]
Check = Callable[[dict[str, Any]], None]

#: Options of torch's optimizers that make no sense in a config.
_PROGRAM_ONLY = ("self", "params", "capturable", "differentiable", "maximize")


class Optimizer(torch.optim.Optimizer, Registrable):
    """
    Base class of the optimizers, all of which take these keys beside their own.

    # Parameters

    model_parameters : `list[tuple[str, Parameter]]`
        Given by the trainer.
    parameter_groups : `list[tuple[list[str], dict]]`, optional (default = `None`)
        See `make_parameter_groups`.
    heads_lr_factor, layer_lr_decay : `float`, optional (default = `1.0`)
        See `with_rate_factors`; not of "multi", whose optimizers take them.
    """

    default_implementation = "adam"

    @staticmethod
    def groups(model_parameters: NamedParameters, parameter_groups: ParameterGroups | None) -> list[dict[str, Any]]:
        """The groups to optimize; freezes the parameters of groups with `requires_grad: false`."""
        groups = make_parameter_groups(model_parameters, parameter_groups)
        if not any(group["params"] for group in groups):
            raise ConfigurationError("optimizer: there is no trainable parameter to optimize")
        return groups


def make_optimizer_class(name: str, wrapped: type, about: str, check: Check | None = None, **defaults: Any) -> Any:
    """
    An `Optimizer` around a class of another library, whose constructor defines the config keys.

    # Parameters

    name : `str`
        The registered name, for the docstring.
    wrapped : `type`
        A subclass of `torch.optim.Optimizer`.
    about : `str`
        First sentences of the docstring.
    check : `Callable`, optional (default = `None`)
        Raises `ConfigurationError` if the options of a parameter group contradict each other.
    defaults : `Any`
        Defaults that differ from those of `wrapped`; `EMPTY` makes a key required.
    """

    @with_keys_of(wrapped.__init__, _PROGRAM_ONLY, defaults)  # type: ignore[misc]
    def __init__(
        self: Any,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        heads_lr_factor: float = 1.0,
        layer_lr_decay: float = 1.0,
        **options: Any,
    ) -> None:
        keys: dict[str, inspect.Parameter] = __init__.__signature__.parameters  # type: ignore[attr-defined]
        options = {**{key: value for key, value in defaults.items() if value is not EMPTY}, **options}
        known = {**{key: parameter.default for key, parameter in keys.items()}, **options}
        groups = Optimizer.groups(model_parameters, parameter_groups)
        if check is not None:
            for group in ({}, *groups):
                check({**known, **group})
        groups = with_rate_factors(groups, model_parameters, known["lr"], heads_lr_factor, layer_lr_decay)
        wrapped.__init__(self, groups, **options)  # type: ignore[misc]

    doc = (
        f'{about}\n\nRegistered as an `Optimizer` with name "{name}". The keys are those of '
        f"`{wrapped.__module__}.{wrapped.__qualname__}`.\n\n{describe_keys(__init__)}"
    )
    members = {"__init__": __init__, "__doc__": doc, "__module__": __name__}
    return type(f"{wrapped.__name__}Optimizer", (Optimizer, wrapped), members)


def _check_adafactor(options: dict[str, Any]) -> None:
    lr, relative_step = options["lr"], options["relative_step"]
    if relative_step and lr is not None:
        raise ConfigurationError(f"lr: found {lr!r}, allowed: null, or a number with relative_step false")
    if not relative_step and lr is None:
        raise ConfigurationError("lr: found null, allowed: a number, or null with relative_step true")
    if not relative_step and options["warmup_init"]:
        raise ConfigurationError("warmup_init: found true, allowed: false, or true with relative_step true")


_TABLE: tuple[tuple[str, type, str, Check | None, dict[str, Any]], ...] = (
    ("adam", torch.optim.Adam, "Adam (Kingma and Ba, 2015), the default.", None, {}),
    ("adamw", torch.optim.AdamW, "Adam with decoupled weight decay (Loshchilov and Hutter, 2019).", None, {}),
    ("sgd", torch.optim.SGD, "Stochastic gradient descent, with optional momentum.", None, {"lr": EMPTY}),
    ("rmsprop", torch.optim.RMSprop, "RMSprop (Hinton, 2012).", None, {}),
    ("adagrad", torch.optim.Adagrad, "Adagrad (Duchi et al., 2011).", None, {}),
    ("adadelta", torch.optim.Adadelta, "Adadelta (Zeiler, 2012).", None, {}),
    ("adamax", torch.optim.Adamax, "Adamax (Kingma and Ba, 2015).", None, {}),
    (
        "averaged_sgd",
        torch.optim.ASGD,
        "Averaged SGD (Polyak and Juditsky, 1992). As in AllenNLP, the averages stay in the optimizer's state: the "
        "weights that are evaluated and archived are not averaged.",
        None,
        {},
    ),
    (
        "huggingface_adafactor",
        Adafactor,
        "Adafactor (Shazeer and Stern, 2018), whose state is much smaller than Adam's. By default it computes its own "
        "learning rate, which excludes a `learning_rate_scheduler`; a fixed `lr` needs `relative_step: false`.",
        _check_adafactor,
        {},
    ),
)
for _name, _wrapped, _about, _check, _defaults in _TABLE:
    Optimizer.register(_name)(make_optimizer_class(_name, _wrapped, _about, _check, **_defaults))


_FormerAdamW: Any = make_optimizer_class("huggingface_adamw", torch.optim.AdamW, "AdamW.", lr=1e-5, weight_decay=0.0)


@Optimizer.register("huggingface_adamw")
class HuggingfaceAdamWOptimizer(_FormerAdamW):
    """
    `adamw` with the defaults of transformers' former AdamW: `lr` 1e-5, no weight decay.

    Registered as an `Optimizer` with name "huggingface_adamw". The keys are those of `adamw`, and:

    # Parameters

    correct_bias : `bool`, optional (default = `True`)
        Only `True` is allowed.
    """

    def __init__(self, correct_bias: bool = True, **options: Any) -> None:
        if not correct_bias:
            raise ConfigurationError("correct_bias: found false, allowed: true")
        super().__init__(**options)
