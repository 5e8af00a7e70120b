"""Optimizers of torch and transformers under AllenNLP's names, and several of them at once."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter
from transformers.optimization import Adafactor

from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.common.recipes import key_reference, with_keys_of
from beem_plugin.common.registry import Lazy, Registrable
from beem_plugin.common.values import EMPTY
from beem_plugin.training.parameter_groups import ParameterGroups, make_parameter_groups, with_rate_factors

NamedParameters = list[tuple[str, Parameter]]

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


def make_optimizer_class(
    name: str, wrapped: type, about: str, check: Callable[[dict[str, Any]], None] | None = None, **defaults: Any
) -> Any:
    """
    An `Optimizer` around a class of another library, whose constructor defines the config keys. `check` looks at the
    options of each parameter group; `defaults` differ from those of `wrapped`, and `EMPTY` makes a key required.
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
        preset = {key: value for key, value in defaults.items() if value is not EMPTY}
        if options.get("foreach"):  # torch allows one of the two
            preset.pop("fused", None)
        options = {**preset, **options}
        known = {**{key: parameter.default for key, parameter in keys.items()}, **options}
        # "multi" passes groups that hold their parameters.
        is_made = bool(parameter_groups) and isinstance(parameter_groups[0], dict)  # type: ignore[index]
        groups: Any = parameter_groups if is_made else make_parameter_groups(model_parameters, parameter_groups)
        if not any(group["params"] for group in groups):
            raise ConfigurationError("optimizer: there is no trainable parameter to optimize")
        for group in ({}, *groups) if check is not None else ():
            check({**known, **group})  # type: ignore[misc]
        groups = with_rate_factors(groups, model_parameters, known["lr"], heads_lr_factor, layer_lr_decay)
        self.names = {parameter: name for name, parameter in model_parameters}
        wrapped.__init__(self, groups, **options)  # type: ignore[misc]

    source = next(base for base in wrapped.__mro__ if base.__module__ != __name__)
    about += (
        f'\n\nRegistered as an `Optimizer` with name "{name}". The keys are those of '
        f"`{source.__module__}.{source.__qualname__}`."
    )
    members = {"__init__": __init__, "__doc__": key_reference(about, __init__), "__module__": __name__}
    return type(f"{wrapped.__name__}Optimizer", (Optimizer, wrapped), members)


def _check_adafactor(options: dict[str, Any]) -> None:
    lr, relative_step = options["lr"], options["relative_step"]
    if relative_step and lr is not None:
        raise ConfigurationError(f"lr: found {lr!r}, allowed: null, or a number with relative_step false")
    if not relative_step and lr is None:
        raise ConfigurationError("lr: found null, allowed: a number, or null with relative_step true")
    if not relative_step and options["warmup_init"]:
        raise ConfigurationError("warmup_init: found true, allowed: false, or true with relative_step true")


class _SparseAdam(torch.optim.SparseAdam):
    """SparseAdam whose error for a dense gradient names the parameter."""

    names: dict[Parameter, str]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            if parameter.grad is not None and not parameter.grad.is_sparse:
                raise ConfigurationError(
                    f'optimizer.type: found "sparse_adam", but the gradient of {self.names[parameter]!r} is dense; '
                    'allowed for it: "dense_sparse_adam" or "adam"'
                )
        return super().step(closure)


class _DenseSparseAdam(torch.optim.SparseAdam):
    """SparseAdam that takes a dense gradient as a sparse one with all rows."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            if (dense := parameter.grad) is not None and not dense.is_sparse:
                rows = torch.arange(len(dense))[None] if dense.dim() else torch.zeros(0, 1, dtype=torch.long)
                given: Any = {"device": dense.device, "is_coalesced": True, "check_invariants": False}
                values = dense if dense.dim() else dense[None]
                parameter.grad = torch.sparse_coo_tensor(rows, values, dense.shape, **given)
        super().step()


#: One kernel for all parameters: a third of the time on a CPU.
_FUSED = {"fused": True}

_ROWS: tuple[tuple[Any, ...], ...] = (
    ("adam", torch.optim.Adam, "Adam (Kingma and Ba, 2015), the default.", _FUSED),
    ("adamw", torch.optim.AdamW, "Adam with decoupled weight decay (Loshchilov and Hutter, 2019).", _FUSED),
    ("sgd", torch.optim.SGD, "Stochastic gradient descent, with optional momentum.", {"lr": EMPTY}),
    ("rmsprop", torch.optim.RMSprop, "RMSprop (Hinton, 2012)."),
    ("adagrad", torch.optim.Adagrad, "Adagrad (Duchi et al., 2011)."),
    ("adadelta", torch.optim.Adadelta, "Adadelta (Zeiler, 2012)."),
    ("adamax", torch.optim.Adamax, "Adamax (Kingma and Ba, 2015)."),
    (
        "averaged_sgd",
        torch.optim.ASGD,
        "Averaged SGD (Polyak and Juditsky, 1992). As in AllenNLP, the averages stay in the optimizer's state: the "
        "weights that are evaluated and archived are not averaged.",
    ),
    (
        "huggingface_adafactor",
        Adafactor,
        "Adafactor (Shazeer and Stern, 2018), whose state is much smaller than Adam's. By default it computes its own "
        "learning rate, which excludes a `learning_rate_scheduler`; a fixed `lr` needs `relative_step: false`.",
        {"check": _check_adafactor},
    ),
    (
        "sparse_adam",
        _SparseAdam,
        "torch's SparseAdam: rows without a gradient keep their values and moments. All gradients must be sparse; for "
        'a model with dense gradients too, use "dense_sparse_adam" or "multi".',
    ),
    ("dense_sparse_adam", _DenseSparseAdam, "Adam for parameters with dense gradients, SparseAdam for sparse ones."),
)
for _name, _wrapped, _about, *_options in _ROWS:
    Optimizer.register(_name)(make_optimizer_class(_name, _wrapped, _about, **dict(*_options)))

_ADAMW_DEFAULTS: dict[str, Any] = {"lr": 1e-5, "weight_decay": 0.0, **_FUSED}
_AdamW: Any = make_optimizer_class("huggingface_adamw", torch.optim.AdamW, "AdamW.", **_ADAMW_DEFAULTS)


@Optimizer.register("huggingface_adamw")
class HuggingfaceAdamWOptimizer(_AdamW):
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


@Optimizer.register("multi")
class MultiOptimizer(Optimizer):
    """
    Optimizers by name; every parameter has one of them:

        optimizer: {
          type: 'multi',
          optimizers: { default: { type: 'adamw', lr: 2e-5 }, exits: { type: 'sgd', lr: 0.1 } },
          parameter_groups: [[['exits'], { optimizer_name: 'exits' }], [['bias'], { weight_decay: 0.0 }]],
        }

    Gradients are clipped together, and a learning rate scheduler sets the rates of all.

    Registered as an `Optimizer` with name "multi".

    # Parameters

    optimizers : `dict[str, Optimizer]`
        The one named "default" has the parameters that no group assigns to another; it is omitted if there are none.
        Any other without a parameter is an error.
    parameter_groups : `list[tuple[list[str], dict]]`
        As for other optimizers; the option `optimizer_name` (or `name`) assigns the group to an optimizer.
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        optimizers: dict[str, Lazy[Optimizer]],
        parameter_groups: ParameterGroups,
    ) -> None:
        if "default" not in optimizers:
            raise ConfigurationError(
                f"optimizers: found {', '.join(optimizers) or 'none'}, allowed: one of them named 'default'"
            )
        groups_of: dict[str, list[dict[str, Any]]] = {name: [] for name in optimizers}
        for _, options in parameter_groups:
            name = options.get("optimizer_name", options.get("name", "default"))
            check_choice("parameter_groups.optimizer_name", name, optimizers)
        for group in make_parameter_groups(model_parameters, parameter_groups):
            name = group.pop("name", "default")
            groups_of[group.pop("optimizer_name", name)].append(group)
        self.optimizers: dict[str, Optimizer] = {}
        for name, optimizer in optimizers.items():
            own = {parameter for group in groups_of[name] for parameter in group["params"]}
            if own:
                named = [(key, parameter) for key, parameter in model_parameters if parameter in own]
                self.optimizers[name] = optimizer.construct(model_parameters=named, parameter_groups=groups_of[name])
            elif name != "default":
                raise ConfigurationError(
                    f"optimizers.{name}: no trainable parameter is in a parameter group with optimizer_name {name!r}"
                )
        if not self.optimizers:
            raise ConfigurationError("optimizer: there is no trainable parameter to optimize")
        torch.optim.Optimizer.__init__(self, self._all_groups(), {})
        self.param_groups = self._all_groups()

    def _all_groups(self) -> list[dict[str, Any]]:
        """The groups of the optimizers themselves, not copies: a rate that is set here is set there."""
        return [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers.values():
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if set(state_dict) != set(self.optimizers):
            raise ConfigurationError(
                f"the checkpoint's optimizers are {', '.join(state_dict)}, the config's {', '.join(self.optimizers)}"
            )
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state_dict[name])
        # Loading replaces the dictionaries of the groups.
        self.param_groups = self._all_groups()
