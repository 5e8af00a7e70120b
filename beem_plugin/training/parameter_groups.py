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
    Takes the parameters whose name matches (`re.search`) one of the regexes out of training. `"@NAME"` in place of a
    regex means a part of the model, see `Model.parts`, so that a config need not know how many layers there are.

    Must run before the model is handed to the accelerator: data parallelism decides then what it synchronizes.
    """
    named = list(model.named_parameters())
    for regex in regexes:
        if regex.startswith("@"):
            matched = _part(model, regex)
        else:
            matched = [parameter for name, parameter in named if re.search(regex, name)]
        if not matched:
            raise ConfigurationError(
                f"trainer.no_grad: {regex!r} matches no parameter; their names start with: "
                + ", ".join(_prefixes(named))
            )
        for parameter in matched:
            parameter.requires_grad_(False)


def frozen_modules_to_eval(model: torch.nn.Module) -> None:
    """Switches dropout and the like off in every module that has parameters, none of them trained."""
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


def count_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """How many numbers are trained and how many are frozen."""
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    return trainable, frozen


def log_parameter_counts(model: torch.nn.Module) -> tuple[int, int]:
    """Logs and returns how many numbers are trained and how many are frozen."""
    trainable, frozen = count_parameters(model)
    logger.info("Trainable parameters: %s, frozen parameters: %s", f"{trainable:,}", f"{frozen:,}")
    if trainable == 0:
        raise ConfigurationError("the model has no trainable parameter left: see trainer.no_grad and requires_grad")
    return trainable, frozen


def make_parameter_groups(
    model_parameters: list[tuple[str, Parameter]], groups: ParameterGroups | None = None
) -> list[dict[str, Any]]:
    """
    The optimizer's parameter groups for a config's `parameter_groups`.

    # Parameters

    model_parameters : `list[tuple[str, Parameter]]`
        Names and parameters; those that need no gradient are left out.
    groups : `list[tuple[list[str], dict]]`, optional (default = `None`)
        AllenNLP's form, `[[[regex, ...], {option: value}], ...]`. A parameter belongs to the group one of whose regexes
        is found in its name (`re.search`); matching several groups is an error, matching none means the default
        options, and a regex that matches nothing is warned about. `{requires_grad: false}` freezes the group.
    """
    trained = [(name, parameter) for name, parameter in model_parameters if parameter.requires_grad]
    if not groups:
        return [{"params": [parameter for _, parameter in trained]}]
    made: list[dict[str, Any]] = []
    for regexes, options in groups:
        if isinstance(regexes, str):
            raise ConfigurationError(
                f"optimizer.parameter_groups: found {regexes!r}, allowed: groups of the form "
                "[[regex, ...], {option: value}]"
            )
        made.append({"params": [], **dict(options)})
    default: dict[str, Any] = {"params": []}
    unused = {regex for regexes, _ in groups for regex in regexes}
    for name, parameter in trained:
        owners = []
        for number, (regexes, _) in enumerate(groups):
            matching = [regex for regex in regexes if re.search(regex, name)]
            unused.difference_update(matching)
            if matching:
                owners.append((number, matching[0]))
        if len({number for number, _ in owners}) > 1:
            raise ConfigurationError(
                f"optimizer.parameter_groups: parameter {name!r} matches several groups, by "
                + " and ".join(repr(regex) for _, regex in owners)
            )
        (made[owners[0][0]] if owners else default)["params"].append(parameter)
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


def _part(model: Any, name: str) -> list[Parameter]:
    parts: dict[str, list[Parameter]] = model.parts() if hasattr(model, "parts") else {}
    if name[1:] not in parts:
        raise ConfigurationError(not_allowed("trainer.no_grad", name, [f"@{part}" for part in parts]))
    return parts[name[1:]]


def _prefixes(named: list[tuple[str, Parameter]]) -> list[str]:
    return sorted({".".join(name.split(".")[:2]) for name, _ in named})
