"""Several optimizers, each with its own part of the model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.common.registry import Lazy
from beem_plugin.training.optimizers import NamedParameters, Optimizer
from beem_plugin.training.parameter_groups import ParameterGroups, make_parameter_groups

DEFAULT = "default"
NAME_KEYS = ("optimizer_name", "name")


@Optimizer.register("multi")
class MultiOptimizer(Optimizer):
    """
    Optimizers by name, of which every parameter has one:

        optimizer: {
          type: 'multi',
          optimizers: { default: { type: 'adamw', lr: 2e-5 }, exits: { type: 'sgd', lr: 0.1 } },
          parameter_groups: [[['exits'], { optimizer_name: 'exits' }], [['bias'], { weight_decay: 0.0 }]],
        }

    Gradients are clipped together, and a learning rate scheduler sets the rates of all.

    Registered as an `Optimizer` with name "multi".

    # Parameters

    optimizers : `dict[str, Optimizer]`
        One is named "default": it has what no group gives to another. It is left out when nothing remains for it; any
        other without a parameter is an error.
    parameter_groups : `list[tuple[list[str], dict]]`
        As for other optimizers, and in the options `optimizer_name` (or `name`), which optimizer has the group.
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        optimizers: dict[str, Lazy[Optimizer]],
        parameter_groups: ParameterGroups,
    ) -> None:
        if DEFAULT not in optimizers:
            raise ConfigurationError(
                f"optimizers: found {', '.join(optimizers) or 'none'}, allowed: one of them named {DEFAULT!r}"
            )
        named_groups: list[tuple[str, list[str], dict[str, Any]]] = []
        for regexes, options in parameter_groups:
            name, kept = _take_name(options)
            if name not in optimizers:
                raise ConfigurationError(not_allowed("parameter_groups.optimizer_name", name, list(optimizers)))
            named_groups.append((name, regexes, kept))
        # All groups at once: two that share a parameter are an error, and what is frozen is frozen for every optimizer.
        marked = [(regexes, {**options, "optimizer_name": name}) for name, regexes, options in named_groups]
        owner = {
            parameter: group.get("optimizer_name", DEFAULT)
            for group in make_parameter_groups(model_parameters, marked)
            for parameter in group["params"]
        }
        self.optimizers: dict[str, Optimizer] = {}
        for name, optimizer in optimizers.items():
            own = [(key, parameter) for key, parameter in model_parameters if owner.get(parameter) == name]
            if own:
                groups = _groups_of(name, named_groups, own)
                self.optimizers[name] = optimizer.construct(model_parameters=own, parameter_groups=groups)
            elif name != DEFAULT:
                raise ConfigurationError(
                    f"optimizers.{name}: no trainable parameter is in a parameter group with optimizer_name {name!r}"
                )
        if not self.optimizers:
            raise ConfigurationError("optimizer: there is no trainable parameter to optimize")
        torch.optim.Optimizer.__init__(self, self._all_groups(), {})
        self.param_groups = self._all_groups()

    def _all_groups(self) -> list[dict[str, Any]]:
        """The optimizers' own groups, not copies: a rate set here is the rate there."""
        return [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers.values():
            optimizer.step()
        return loss

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


def _take_name(options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    kept = dict(options)
    names = [kept.pop(key) for key in NAME_KEYS if key in kept]
    return (str(names[0]) if names else DEFAULT), kept


def _groups_of(
    name: str, named_groups: list[tuple[str, list[str], dict[str, Any]]], own: NamedParameters
) -> ParameterGroups:
    """The groups of one optimizer, without regexes that find nothing: those have been warned about."""
    groups = []
    for owner, regexes, options in named_groups:
        found = [regex for regex in regexes if any(re.search(regex, key) for key, _ in own)]
        if owner == name and found:
            groups.append((found, options))
    return groups
