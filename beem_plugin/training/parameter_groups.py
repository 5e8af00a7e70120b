"""Which parameters are trained, and with which options."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter

from beem_plugin.common.errors import ConfigurationError, not_allowed

logger = logging.getLogger(__name__)

ParameterGroups = list[tuple[list[str], dict[str, Any]]]


def freeze(model: torch.nn.Module, regexes: Iterable[str]) -> None:
    """
    Excludes from training the parameters whose name contains a match of one of the regexes. `"@NAME"` in place of a
    regex is a part of the model, see `Model.parts`, so that a config is independent of the number of layers.

    Must run before the accelerator wraps the model, which determines the parameters that are synchronized.
    """
    named = list(model.named_parameters())
    for regex in regexes:
        if regex.startswith("@"):
            parts: dict[str, list[Parameter]] = model.parts() if hasattr(model, "parts") else {}  # type: ignore[operator]
            if regex[1:] not in parts:
                raise ConfigurationError(not_allowed("trainer.no_grad", regex, [f"@{part}" for part in parts]))
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
    The optimizer's parameter groups for a config's `parameter_groups`.

    # Parameters

    model_parameters : `list[tuple[str, Parameter]]`
        Names and parameters; frozen ones are excluded.
    groups : `list[tuple[list[str], dict]]`, optional (default = `None`)
        AllenNLP's form, `[[[regex, ...], {option: value}], ...]`. A parameter belongs to the group one of whose regexes
        matches in its name (`re.search`); a parameter that matches several groups is an error, one that matches none
        has the default options, and a regex without a match is warned about. `{requires_grad: false}` freezes the
        group.
    """
    groups = groups or []
    for regexes, _ in groups:
        if isinstance(regexes, str):
            raise ConfigurationError(
                f"optimizer.parameter_groups: found {regexes!r}, allowed: groups of the form "
                "[[regex, ...], {option: value}]"
            )
    made: list[dict[str, Any]] = [{"params": [], **options} for _, options in groups]
    default: dict[str, Any] = {"params": []}
    unused = {regex for regexes, _ in groups for regex in regexes}
    for name, parameter in model_parameters:
        if not parameter.requires_grad:
            continue
        owners: dict[int, str] = {}
        for number, (regexes, _) in enumerate(groups):
            matching = [regex for regex in regexes if re.search(regex, name)]
            unused.difference_update(matching)
            if matching:
                owners[number] = matching[0]
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
