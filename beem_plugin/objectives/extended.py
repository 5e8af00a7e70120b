"""Another objective with a term added to its loss."""

from __future__ import annotations

from torch import Tensor

from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives.objective import Objective, check_number


class ExtendedObjective(Objective):
    """
    loss of `objective` + weight * term.

    # Parameters

    objective : `Objective`
    weight : `float`
        From 0.
    """

    serves_regression = True  # where `objective` does

    def __init__(self, objective: Objective, weight: float) -> None:
        super().__init__()
        check_number("weight", weight)
        self.objective = objective
        self.weight = weight
        self.required_signals = tuple(dict.fromkeys((*objective.required_signals, *type(self).required_signals)))

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        own = self.objective.loss(outputs, label)
        ((name, term),) = self.term(outputs, label).items()
        return {**own, "loss": own["loss"] + self.weight * term, name: term.detach()}

    def term(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        """The term, a scalar, under its name in the log. Parameters as of `loss`."""
        raise TypeError(f"{type(self).__name__} does not define term")
