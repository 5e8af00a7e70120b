"""Learning rates that differ between the backbone's layers and the exits."""

from __future__ import annotations

import re
from typing import Any

from torch.nn import Parameter

from beem_plugin.common.errors import ConfigurationError

BACKBONE = re.compile(r"(^|\.)backbone\.")
LAYER = re.compile(r"(.*?\.(?:\w*layers?|\w*layer_groups|blocks?|h))\.(\d+)\.")


def with_rate_factors(
    groups: list[dict[str, Any]],
    model_parameters: list[tuple[str, Parameter]],
    lr: float | None,
    heads_lr_factor: float = 1.0,
    layer_lr_decay: float = 1.0,
) -> list[dict[str, Any]]:
    """
    Optimizer groups whose rates are multiplied by factors that depend on the parameter's place in the network. A group
    with several factors becomes several groups; `lr` is the rate of groups without one.

    # Parameters

    heads_lr_factor : `float`, optional (default = `1.0`)
        For all parameters outside the backbone: branches, poolers, classifiers, signal modules.
    layer_lr_decay : `float`, optional (default = `1.0`)
        Layer l of L has the factor decay ** (L - l), parameters outside layers, such as embeddings, decay ** L (Howard
        and Ruder 2018; Clark et al. 2020).
    """
    keys = {"heads_lr_factor": heads_lr_factor, "layer_lr_decay": layer_lr_decay}
    if all(value == 1 for value in keys.values()):
        return groups
    for key, value in keys.items():
        if value <= 0:
            raise ConfigurationError(f"{key}: found {value}, allowed: above 0")
    factors = _factors([name for name, _ in model_parameters], heads_lr_factor, layer_lr_decay)
    factor_of = {parameter: factors[name] for name, parameter in model_parameters}
    made = []
    for group in groups:
        rate = group.get("lr", lr)
        if rate is None:
            raise ConfigurationError(f"{', '.join(keys)}: found an optimizer with lr null, allowed: a number")
        by_factor: dict[float, list[Parameter]] = {}
        for parameter in group["params"]:
            by_factor.setdefault(factor_of[parameter], []).append(parameter)
        made += [{**group, "params": part, "lr": rate * factor} for factor, part in by_factor.items()]
    return made


def _factors(names: list[str], heads: float, decay: float) -> dict[str, float]:
    """The factor of each parameter."""
    places = {name: LAYER.match(name) for name in names if BACKBONE.search(name)}
    if not places:
        raise ConfigurationError(
            "heads_lr_factor, layer_lr_decay: the model has no parameter named `backbone.*`, allowed: a model with a "
            "backbone, or rates in parameter_groups"
        )
    depth: dict[str, int] = {}
    for found in filter(None, places.values()):
        depth[found[1]] = max(depth.get(found[1], 0), int(found[2]) + 1)
    deepest = max(depth.values(), default=0)
    factors = dict.fromkeys(names, heads)
    for name, place in places.items():
        factors[name] = decay ** (depth[place[1]] - int(place[2]) - 1 if place else deepest)
    return factors
