"""Which parameters are trained, with which options and learning rates."""

import logging
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number

logger = logging.getLogger(__name__)

BACKBONE = re.compile(r"(^|\.)backbone\.")
LAYER = re.compile(r"(.*?\.(?:\w*layers?|\w*layer_groups|blocks?|h))\.(\d+)\.")

ParameterGroups = list[tuple[list[str], dict[str, Any]]]


def freeze(model: torch.nn.Module, regexes: Iterable[str]) -> None:
    """
    Excludes from training the parameters whose name contains a match of a regex, or that are in a part of the model
    (`"@NAME"`, see `Model.parts`). Runs before the accelerator wraps the model.
    """
    named = list(model.named_parameters())
    for regex in regexes:
        if regex.startswith("@"):
            parts: dict[str, list[Parameter]] = model.parts() if hasattr(model, "parts") else {}  # type: ignore[operator]
            check_choice("trainer.no_grad", regex, [f"@{part}" for part in parts])
            matched = parts[regex[1:]]
        else:
            matched = [parameter for name, parameter in named if re.search(regex, name)]
        if not matched:
            prefixes = sorted({".".join(name.split(".")[:2]) for name, _ in named})
            raise ConfigurationError(
                f"trainer.no_grad: {regex!r} matches no parameter; their names start with: {', '.join(prefixes)}"
            )
        for parameter in matched:
            parameter.requires_grad_(False)


def frozen_modules_to_eval(model: torch.nn.Module) -> None:
    """Puts modules all of whose parameters are frozen into evaluation mode, which disables their dropout."""
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


def count_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """The number of trainable and of frozen scalar parameters."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, trained in sizes if trained), sum(size for size, trained in sizes if not trained)


def make_parameter_groups(
    model_parameters: list[tuple[str, Parameter]], groups: ParameterGroups | None = None
) -> list[dict[str, Any]]:
    """
    The optimizer's parameter groups of AllenNLP's form, `[[[regex, ...], {option: value}], ...]`. A parameter belongs
    to the group one of whose regexes matches in its name (`re.search`); a parameter that matches several groups is an
    error, one that matches none has the default options, and a regex without a match is warned about.
    `{requires_grad: false}` freezes the group. Frozen parameters are excluded.
    """
    groups = groups or []
    made: list[dict[str, Any]] = [{"params": [], **options} for _, options in groups]
    default: dict[str, Any] = {"params": []}
    unused = {regex for regexes, _ in groups for regex in regexes}
    for name, parameter in model_parameters:
        if not parameter.requires_grad:
            continue
        matching = [(number, regex) for number, (regexes, _) in enumerate(groups) for regex in regexes]
        matching = [(number, regex) for number, regex in matching if re.search(regex, name)]
        unused.difference_update(regex for _, regex in matching)
        owners = dict(matching)
        if len(owners) > 1:
            raise ConfigurationError(
                f"optimizer.parameter_groups: parameter {name!r} matches several groups, by "
                + " and ".join(map(repr, owners.values()))
            )
        (made[next(iter(owners))] if owners else default)["params"].append(parameter)
    for regex in sorted(unused):
        logger.warning("optimizer.parameter_groups: %r matches no trainable parameter", regex)
    kept = []
    for group in [*made, default]:
        if group.pop("requires_grad", True) is False:
            for parameter in group["params"]:
                parameter.requires_grad_(False)
        elif group["params"]:
            kept.append(group)
    return kept


def with_rate_factors(
    groups: list[dict[str, Any]],
    model_parameters: list[tuple[str, Parameter]],
    lr: float | None,
    heads_lr_factor: float = 1.0,
    layer_lr_decay: float = 1.0,
) -> list[dict[str, Any]]:
    """
    Optimizer groups whose rates are multiplied: by `heads_lr_factor` outside the backbone; with `layer_lr_decay`, in
    layer l of L by decay ** (L - l), in the backbone's other parameters, such as embeddings, by decay ** L (Howard and
    Ruder 2018; Clark et al. 2020). `lr` is the rate of groups without one.
    """
    keys = {"heads_lr_factor": heads_lr_factor, "layer_lr_decay": layer_lr_decay}
    if all(value == 1 for value in keys.values()):
        return groups
    for key, value in keys.items():
        check_number(key, value, open_low=True)
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
