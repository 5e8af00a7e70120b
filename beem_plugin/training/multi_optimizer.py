"""Several optimizers, each for some of the model's parameters."""

from typing import Any

import torch

from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.common.registry import Lazy
from beem_plugin.training.optimizers import NamedParameters, Optimizer
from beem_plugin.training.parameter_groups import ParameterGroups, make_parameter_groups

DEFAULT = "default"


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
        if DEFAULT not in optimizers:
            raise ConfigurationError(
                f"optimizers: found {', '.join(optimizers) or 'none'}, allowed: one of them named {DEFAULT!r}"
            )
        groups_of: dict[str, list[dict[str, Any]]] = {name: [] for name in optimizers}
        for _, options in parameter_groups:
            name = options.get("optimizer_name", options.get("name", DEFAULT))
            check_choice("parameter_groups.optimizer_name", name, optimizers)
        for group in make_parameter_groups(model_parameters, parameter_groups):
            name = group.pop("name", DEFAULT)
            groups_of[group.pop("optimizer_name", name)].append(group)
        self.optimizers: dict[str, Optimizer] = {}
        for name, optimizer in optimizers.items():
            own = {parameter for group in groups_of[name] for parameter in group["params"]}
            if own:
                named = [(key, parameter) for key, parameter in model_parameters if parameter in own]
                self.optimizers[name] = optimizer.construct(model_parameters=named, parameter_groups=groups_of[name])
            elif name != DEFAULT:
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
