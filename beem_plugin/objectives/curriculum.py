"""Which exits are trained in a step."""

import torch
from torch import Tensor

from beem_plugin.common.registry import Registrable
from beem_plugin.objectives.objective import check_number


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
        check_number("curriculum.fraction", fraction, high=1)
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
        check_number("curriculum.period", period, low=1)
        self.period = period

    def enabled(self, step: Tensor, done: Tensor, num_exits: int) -> Tensor:
        number = torch.arange(num_exits, device=step.device)
        return ((number - step.long()) % self.period == 0) | (number == num_exits - 1)
