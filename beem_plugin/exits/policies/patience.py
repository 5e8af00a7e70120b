"""Leave when consecutive exits agree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState


@ExitPolicy.register("patience")
class Patience(ExitPolicy):
    """
    PABEE (Zhou et al. 2020): leaves when an exit has agreed with its predecessor `patience` times in a row, so after
    `patience` + 1 equal labels; the earliest exit is `patience` + 1. LeeBERT and ElasticBERT's patience variant leave
    by the same rule.

    Registered as an `ExitPolicy` with name "patience".

    # Parameters

    patience : `int`
        Agreements in a row, 1 or more.
    """

    def __init__(self, patience: int) -> None:
        if patience < 1:
            raise ConfigurationError(f"patience: found {patience}, allowed: 1 or more")
        self.patience = patience

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return ExitState(
            prediction=torch.full((batch_size,), -1, dtype=torch.int64, device=device),
            score=self.zeros(batch_size, device),
        )

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        agrees = signals.prediction == state["prediction"]
        count = torch.where(agrees, state["score"] + 1, torch.zeros_like(state["score"]))
        return count >= self.patience, ExitState(prediction=signals.prediction, score=count)

    def to_config(self) -> dict[str, Any]:
        return {"type": "patience", "patience": self.patience}
