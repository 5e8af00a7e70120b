"""Exit when consecutive exits agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.trace_interface import Trace


@ExitPolicy.register("patience")
class Patience(ExitPolicy):
    """
    PABEE (Zhou et al. 2020): a sample exits when an exit has agreed with its predecessor `patience` times in a row, so
    after `patience` + 1 equal labels; the earliest exit is `patience` + 1. LeeBERT and ElasticBERT's patience variant
    use the same criterion.

    In a regression exits agree when |y_i - y_{i-1}| < `tolerance`. PABEE's release has the default 0, under which no
    sample exits early, so it must be given.

    Registered as an `ExitPolicy` with name "patience".

    # Parameters

    patience : `int`
        Agreements in a row, 1 or more.
    tolerance : `float`, optional (default = `None`)
        For a regression only, where it is required: in the unit of the labels, above 0. PABEE's readme suggests 0.1 for
        STS-B.
    """

    speed_keys: ClassVar[tuple[str, ...] | None] = ("patience", "tolerance")
    serves_regression: ClassVar[bool] = True

    def __init__(self, patience: int, tolerance: float | None = None) -> None:
        if patience < 1:
            raise ConfigurationError(f"patience: found {patience}, allowed: 1 or more")
        if tolerance is not None and not 0 < tolerance < math.inf:
            raise ConfigurationError(
                f"tolerance: found {tolerance}, allowed: above 0 (no two exits differ by less than 0)"
            )
        self.patience = patience
        self.tolerance = tolerance

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        if num_labels == 1 and self.tolerance is None:
            raise ConfigurationError(
                "patience.tolerance: found nothing, needed for a regression: by how much less than that two exits' "
                "values may differ to agree, in the labels' unit"
            )
        if num_labels > 1 and self.tolerance is not None:
            raise ConfigurationError(
                f"patience.tolerance: found {self.tolerance} for {num_labels} labels, allowed: for a regression only"
            )

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        if self.tolerance is not None:
            # Exit 1 has no predecessor: no value is close to infinity.
            zeros = self.zeros(batch_size, device)
            return ExitState(prediction=zeros + math.inf, score=zeros)
        return ExitState(
            prediction=torch.full((batch_size,), -1, dtype=torch.int64, device=device),
            score=self.zeros(batch_size, device),
        )

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        if self.tolerance is None:
            agrees = signals.prediction == state["prediction"]
        else:
            agrees = (signals.prediction - state["prediction"]).abs() < self.tolerance
        count = torch.where(agrees, state["score"] + 1, torch.zeros_like(state["score"]))
        return count >= self.patience, ExitState(prediction=signals.prediction, score=count)

    def _state_after(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return self.step(exit_number, signals, state)[1]

    def can_leave(self, exit_number: int) -> bool:
        return exit_number > self.patience or not self.describes_itself("can_leave")

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        most = self.num_exits - 2
        if self.patience <= most or self.num_exits < 2:
            return []
        return [
            f"patience.patience: found {self.patience}, but exits before the last of {self.num_exits} agree {most} "
            "times in a row at most: no sample can exit before the last exit"
        ]

    def score_key(self) -> bytes | None:
        return self.fingerprint(without=("patience",)) if type(self).step is Patience.step else None

    def scores(self, trace: Trace) -> ScoreTable:
        return ScoreTable.of(trace, self.start(len(trace), trace.num_exits), self._state_after, self.prediction)

    def limits(self) -> list[float]:
        return [float(self.patience)] * (self.num_exits - 1)

    def to_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"type": "patience", "patience": self.patience}
        return config if self.tolerance is None else {**config, "tolerance": self.tolerance}
