"""Weights of the exits in a sum over exits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, not_allowed

WEIGHTINGS = ("linear", "descending", "descending_release", "uniform")
REDUCTIONS = ("mean", "sum")


def check_exit_weights(layer_weights: str | Sequence[float], reduction: str) -> None:
    """Raises a `ConfigurationError` that names the key if either is invalid."""
    if reduction not in REDUCTIONS:
        raise ConfigurationError(not_allowed("objective.reduction", reduction, REDUCTIONS))
    if isinstance(layer_weights, str):
        if layer_weights not in WEIGHTINGS:
            raise ConfigurationError(not_allowed("objective.layer_weights", layer_weights, WEIGHTINGS))
    elif not layer_weights or min(layer_weights) < 0 or not any(layer_weights):
        raise ConfigurationError(
            f"objective.layer_weights: found {list(layer_weights)}, allowed: numbers from 0, not all of them 0"
        )


def exit_weights(
    layer_weights: str | Sequence[float], num_exits: int, device: torch.device | str = "cpu", reduction: str = "mean"
) -> Tensor:
    """
    # Parameters

    layer_weights : `str` or `list[float]`
        With n exits: `"linear"`: i (PABEE, BEEM; PCEE-BERT's `asc`); `"descending"`: n - i + 1 (PCEE-BERT's `desc`);
        `"uniform"`: 1; or one number per exit. `"descending_release"`: PCEE-BERT's code for `desc`: 1 for the
        first exit, n - i for the others, so that the last one has weight 0, divided by n (n - 1) / 2, which is not
        their sum.
    num_exits : `int`
    device : `torch.device`
    reduction : `str`, optional (default = `"mean"`)
        `"mean"`: divided by their sum; `"sum"`: as they are.

    # Returns

    `Tensor`
        `(exits,)` float32
    """
    if not isinstance(layer_weights, str) and len(layer_weights) != num_exits:
        raise ConfigurationError(
            f"objective.layer_weights: found {len(layer_weights)} numbers, allowed: {num_exits}, one per exit"
        )
    number = torch.arange(1, num_exits + 1, dtype=torch.float32, device=device)
    if layer_weights == "linear":
        values = number
    elif layer_weights == "uniform":
        values = torch.ones_like(number)
    elif layer_weights == "descending":
        values = num_exits + 1 - number
    elif layer_weights == "descending_release":
        if num_exits < 2:
            raise ConfigurationError("objective.layer_weights: found 'descending_release' and 1 exit, allowed: 2 exits")
        values = num_exits - number
        total = values.sum()
        values[0] = 1
        return values / total if reduction == "mean" else values
    else:
        values = torch.tensor(layer_weights, dtype=torch.float32, device=device)
    return values / values.sum() if reduction == "mean" else values


def relative_depths(exit_layers: Sequence[int] | None, num_exits: int, device: torch.device | str = "cpu") -> Tensor:
    """`(exits,)` each exit's layer divided by the depth; without `exit_layers`, an exit at every layer."""
    layers = exit_layers if exit_layers is not None else range(1, num_exits + 1)
    if len(layers) != num_exits:
        raise ConfigurationError(
            f"objective: found logits of {num_exits} exits, allowed: {len(layers)} as it was bound"
        )
    return torch.tensor(list(layers), dtype=torch.float32, device=device) / layers[-1]
