"""Weights of the exits in a sum over exits, and which exits are trained in a step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.common.registry import Registrable
from beem_plugin.objectives.objective import Objective

REDUCTIONS = ("mean", "sum")


def exit_weights(
    layer_weights: str | Sequence[float], num_exits: int, device: torch.device | str = "cpu", reduction: str = "mean"
) -> Tensor:
    """`(exits,)` float32; see `WeightedObjective`."""
    number = torch.arange(1, num_exits + 1, dtype=torch.float32, device=device)
    if not isinstance(layer_weights, str):
        values = one_each("layer_weights", layer_weights, num_exits, device)
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


def one_each(
    key: str, values: Sequence[float], count: int, device: torch.device | str, which: str = "one per exit"
) -> Tensor:
    """`constant` of the values of a config key, of which there must be `count`."""
    if len(values) != count:
        raise ConfigurationError(f"objective.{key}: found {len(values)} numbers, allowed: {count}, {which}")
    return constant(values, device)


def constant(values: Sequence[float], device: torch.device | str) -> Tensor:
    """`(values,)` float32, made on the device: a copy from the host could not be captured in a CUDA graph."""
    zeros = torch.zeros(0, device=device)
    return torch.cat([zeros, *(torch.full((1,), float(value), device=device) for value in values)])


class Curriculum(Registrable):
    """Enables exits by the training step; the last exit is always trained. Disabled exits have weight 0 in a step."""

    def enabled(self, step: Tensor, done: Tensor, num_exits: int) -> Tensor:
        """`(exits,)` bool, from two scalars: the completed steps, and their share of all steps."""
        raise TypeError(f"{type(self).__name__} does not define enabled")


@Curriculum.register("gradual")
class GradualCurriculum(Curriculum):
    """
    LayerSkip's gradual curriculum (Elhoushi et al. 2024, section 4.1.2): training starts with the last exit, and the
    others join from deep to shallow at equal distances, exit i of L after fraction (L - i) / (L - 1) of all steps.

    Registered as a `Curriculum` with name "gradual".

    # Parameters

    fraction : `float`, optional (default = `0.5`)
        The share of the steps after which all exits are trained.
    """

    def __init__(self, fraction: float = 0.5) -> None:
        check_number("fraction", fraction, high=1)
        self.fraction = fraction

    def enabled(self, step: Tensor, done: Tensor, num_exits: int) -> Tensor:
        later = torch.arange(num_exits - 1, -1, -1, device=done.device)
        return done >= self.fraction * later / max(num_exits - 1, 1)


@Curriculum.register("rotational")
class RotationalCurriculum(Curriculum):
    """
    LayerSkip's rotational curriculum (Elhoushi et al. 2024, section 4.1.2): every `period`-th exit is trained, and
    these move by one exit each step.

    Registered as a `Curriculum` with name "rotational".

    # Parameters

    period : `int`, optional (default = `2`)
    """

    def __init__(self, period: int = 2) -> None:
        check_number("period", period, low=1)
        self.period = period

    def enabled(self, step: Tensor, done: Tensor, num_exits: int) -> Tensor:
        number = torch.arange(num_exits, device=step.device)
        return ((number - step.long()) % self.period == 0) | (number == num_exits - 1)


class WeightedObjective(Objective):
    """
    An objective with a weight per exit.

    # Parameters

    layer_weights : `str` or `list[float]`
        With n exits: `"linear"`, i (PABEE, BEEM; PCEE-BERT's `asc`); `"descending"`, n - i + 1 (its `desc`);
        `"uniform"`, 1; or one number per exit. `"descending_release"`, PCEE-BERT's code for `desc`: 1 for the first
        exit, n - i for the others, 0 for the last, divided by n (n - 1) / 2, which is not their sum.
    reduction : `str`
        `"mean"`: the weights are divided by their sum; `"sum"`: as they are.
    curriculum : `Curriculum`, optional (default = `None`)
        Which exits are trained in a step, such as `{"type": "gradual"}`; without effect in evaluation.
    """

    def __init__(
        self, layer_weights: str | Sequence[float], reduction: str = "mean", curriculum: Curriculum | None = None
    ) -> None:
        super().__init__()
        check_choice("reduction", reduction, REDUCTIONS)
        if isinstance(layer_weights, str):
            check_choice("layer_weights", layer_weights, ("linear", "descending", "descending_release", "uniform"))
        elif not layer_weights or min(layer_weights) < 0 or not any(layer_weights):
            raise ConfigurationError(
                f"layer_weights: found {list(layer_weights)}, allowed: numbers from 0, not all of them 0"
            )
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
