"""Weights of the exits in a sum over exits."""

from collections.abc import Sequence

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.objectives.curriculum import Curriculum
from beem_plugin.objectives.objective import Objective, check_choice

WEIGHTINGS = ("linear", "descending", "descending_release", "uniform")
REDUCTIONS = ("mean", "sum")


def check_exit_weights(layer_weights: str | Sequence[float], reduction: str) -> None:
    """Raises a `ConfigurationError` that names the key if either is invalid."""
    check_choice("reduction", reduction, REDUCTIONS)
    if isinstance(layer_weights, str):
        check_choice("layer_weights", layer_weights, WEIGHTINGS)
    elif not layer_weights or min(layer_weights) < 0 or not any(layer_weights):
        raise ConfigurationError(
            f"objective.layer_weights: found {list(layer_weights)}, allowed: numbers from 0, not all of them 0"
        )


def exit_weights(
    layer_weights: str | Sequence[float], num_exits: int, device: torch.device | str = "cpu", reduction: str = "mean"
) -> Tensor:
    """
    `(exits,)` float32. With n exits: `"linear"`: i (PABEE, BEEM; PCEE-BERT's `asc`); `"descending"`: n - i + 1
    (PCEE-BERT's `desc`); `"uniform"`: 1; or one number per exit. `"descending_release"`: PCEE-BERT's code for `desc`:
    1 for the first exit, n - i for the others, so that the last one has weight 0, divided by n (n - 1) / 2, which is
    not their sum. The reduction `"mean"` divides them by their sum; `"sum"` leaves them as they are.
    """
    number = torch.arange(1, num_exits + 1, dtype=torch.float32, device=device)
    if not isinstance(layer_weights, str):
        if len(layer_weights) != num_exits:
            raise ConfigurationError(
                f"objective.layer_weights: found {len(layer_weights)} numbers, allowed: {num_exits}, one per exit"
            )
        values = constant(layer_weights, device)
    elif layer_weights == "descending_release":
        if num_exits < 2:
            raise ConfigurationError("objective.layer_weights: found 'descending_release' and 1 exit, allowed: 2 exits")
        values = num_exits - number
        total = values.sum()
        values[0] = 1
        return values / total if reduction == "mean" else values
    else:
        named = {"linear": number, "uniform": torch.ones_like(number), "descending": num_exits + 1 - number}
        values = named[layer_weights]
    return values / values.sum() if reduction == "mean" else values


def relative_depths(exit_layers: Sequence[int] | None, num_exits: int, device: torch.device | str = "cpu") -> Tensor:
    """`(exits,)` each exit's layer divided by the depth; without `exit_layers`, an exit at every layer."""
    layers = exit_layers if exit_layers is not None else range(1, num_exits + 1)
    if len(layers) != num_exits:
        raise ConfigurationError(
            f"objective: found logits of {num_exits} exits, allowed: {len(layers)} as it was bound"
        )
    return constant(layers, device) / layers[-1]


def constant(values: Sequence[float], device: torch.device | str) -> Tensor:
    """`(values,)` float32, made on the device: a copy from the host could not be captured in a CUDA graph."""
    zeros = torch.zeros(0, device=device)
    return torch.cat([zeros, *(torch.full((1,), float(value), device=device) for value in values)])


class WeightedObjective(Objective):
    """
    An objective with a weight per exit.

    # Parameters

    layer_weights : `str` or `list[float]`
        See `exit_weights`.
    reduction : `str`, optional (default = `"mean"`)
        `"mean"`: the weights are divided by their sum; `"sum"`: as they are.
    curriculum : `Curriculum`, optional (default = `None`)
        Which exits are trained in a step: `"gradual"` or `"rotational"`. In evaluation it has no effect.
    """

    def __init__(
        self, layer_weights: str | Sequence[float], reduction: str = "mean", curriculum: Curriculum | None = None
    ) -> None:
        super().__init__()
        check_exit_weights(layer_weights, reduction)
        self.layer_weights = layer_weights
        self.reduction = reduction
        self.curriculum = curriculum

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        exit_weights(self.layer_weights, self.num_weights(len(exit_layers)))

    def num_weights(self, num_exits: int) -> int:
        """How many exits, from the first on, have a weight."""
        return num_exits

    def exit_weights(self, num_exits: int, device: torch.device | str = "cpu") -> Tensor:
        """`(exits,)` the weights of this step."""
        weights = exit_weights(self.layer_weights, self.num_weights(num_exits), device, self.reduction)
        if self.curriculum is None or not self.training:
            return weights
        weights = weights * self.curriculum.enabled(self.schedule[0], self.done(), num_exits)[: len(weights)]
        return weights / weights.sum().clamp_min(1e-12) if self.reduction == "mean" else weights
