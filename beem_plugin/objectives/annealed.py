"""Weights of early exits that grow during training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.objectives.cross_entropy import mean_over_known
from beem_plugin.objectives.exit_loss import exit_loss
from beem_plugin.objectives.exit_weights import constant, relative_depths
from beem_plugin.objectives.objective import Objective, check_number


@Objective.register("annealed")
class Annealed(Objective):
    """
    Shallow-Deep networks (Kaya et al. 2019, section 3.2):

        loss = CE(p_L, y) + sum_{i<L} tau_i(t) CE(p_i, y),

    tau_i grows linearly from `start` in the first step to the exit's relative depth in the last. The release raises it
    once an epoch. In evaluation tau_i has its last value. In a regression CE is (y_i - y)^2.

    Registered as an `Objective` with name "annealed".

    # Parameters

    start : `float`, optional (default = `0.01`)
    end : `list[float]`, optional (default = each exit's relative depth)
        The last tau_i, one number for every exit but the last.
    """

    serves_regression = True

    def __init__(self, start: float = 0.01, end: list[float] | None = None) -> None:
        super().__init__()
        for key, value in (("start", start), *(("end", value) for value in end or [])):
            check_number(key, value)
        self.start = start
        self.end = end

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        self._end(len(exit_layers), "cpu")

    def _end(self, num_exits: int, device: torch.device | str) -> Tensor:
        if self.end is None:
            return relative_depths(self.exit_layers, num_exits, device)[:-1]
        if len(self.end) != num_exits - 1:
            raise ConfigurationError(
                f"objective.end: found {len(self.end)} numbers, allowed: {num_exits - 1}, one per exit but the last"
            )
        return constant(self.end, device) if self.end else torch.zeros(0, device=device)

    def exit_weights(self, num_exits: int, device: torch.device | str = "cpu") -> Tensor:
        """`(exits,)` tau_i in this step, and 1 for the last exit."""
        end = self._end(num_exits, device)
        if self.training:
            end = self.start + self.done() * (end - self.start)
        return functional.pad(end, (0, 1), value=1.0)

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        weights = self.exit_weights(logits.shape[1], logits.device)
        losses = mean_over_known(exit_loss(logits, label), label)  # (exits,)
        return {
            "loss": (weights * losses).sum(),
            "final_exit": losses[-1].detach(),
            "early_exits": (weights * losses)[:-1].sum().detach(),
        }
