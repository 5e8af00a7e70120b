"""Leave when consecutive exits are confident."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.calibration.score_key import fingerprint
from beem_plugin.calibration.stepped_table import stepped_table
from beem_plugin.calibration.thresholds import ScoreTable
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState

OUTPUTS = ("last", "run_mean", "mean")


@ExitPolicy.register("confident_patience")
class ConfidentPatience(ExitPolicy):
    """
    PCEE-BERT (Zhang et al. 2022, section 3.2): an exit is confident if its normalized entropy H / ln C is below
    `entropy_threshold`, strictly; a sample leaves after `patience` confident exits in a row, so at exit `patience` at
    the earliest (one exit earlier than `patience` counts). The exits need not agree on the label: a rule that asks for
    that as well is another method.

    Registered as an `ExitPolicy` with name "confident_patience".

    # Parameters

    patience : `int`
        Confident exits in a row, 1 or more.
    entropy_threshold : `float`
        Fraction of ln C. The released script tries nine values from 1/18 to 0.5.
    output : `str`, optional (default = `"last"`)
        What a sample that leaves is given: `"last"`, the exit's own probabilities; `"run_mean"`, their mean over the
        run of confident exits (where there is none, at the last exit, its own); `"mean"`, their mean over all exits so
        far. The release knows all three.
    """

    speed_keys: ClassVar[tuple[str, ...] | None] = ("entropy_threshold",)

    def __init__(self, patience: int, entropy_threshold: float, output: str = "last") -> None:
        if patience < 1:
            raise ConfigurationError(f"patience: found {patience}, allowed: 1 or more")
        if not (entropy_threshold >= 0 and math.isfinite(entropy_threshold)):
            raise ConfigurationError(
                f"entropy_threshold: found {entropy_threshold}, allowed: a fraction of ln C from 0"
            )
        if output not in OUTPUTS:
            raise ConfigurationError(not_allowed("output", output, OUTPUTS))
        self.patience = patience
        self.entropy_threshold = entropy_threshold
        self.output_kind = output

    def doubt(self, signals: ExitSignals) -> Tensor:
        """`(batch,)` H / ln C"""
        return signals.entropy / math.log(self.num_labels)

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return ExitState(score=self.zeros(batch_size, device))

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        confident = self.doubt(signals) < self.entropy_threshold
        count = torch.where(confident, state["score"] + 1, torch.zeros_like(state["score"]))
        state = ExitState(score=count, **self.pool(exit_number, signals, state, count))
        return count >= self.patience, state

    def pool(self, exit_number: int, signals: ExitSignals, state: ExitState, count: Tensor) -> dict[str, Tensor]:
        """`pooled`, `(batch, labels)`: the mean probabilities of the exits that `output` asks for."""
        if self.output_kind == "last":
            return {}
        own = signals.probabilities
        if exit_number == 1:
            return {"pooled": own}
        # The mean of n is the mean of n - 1, moved towards the newest. An exit that is not confident starts anew.
        number = count if self.output_kind == "run_mean" else torch.full_like(count, exit_number)
        pooled = state["pooled"] + (own - state["pooled"]) / number.clamp_min(1).unsqueeze(1)
        return {"pooled": torch.where(number.unsqueeze(1) > 1, pooled, own)}

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        if self.output_kind == "last":
            return signals.log_probabilities
        pooled = state["pooled"]
        return pooled.clamp_min(torch.finfo(pooled.dtype).tiny).log()

    @property
    def needs_all_labels(self) -> bool:
        return self.output_kind != "last"

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        nobody = "nobody can leave before the last exit"
        if self.num_exits > 1 and self.patience > self.num_exits - 1:
            return [
                f"confident_patience.patience: found {self.patience}, but there are {self.num_exits - 1} exits before "
                f"the last: {nobody}"
            ]
        if self.entropy_threshold <= 0 and with_ends:
            return [
                f"confident_patience.entropy_threshold: found {self.entropy_threshold:g}, but the entropy must be "
                f"below that and runs from 0 to 1: {nobody}"
            ]
        return []

    def score_key(self) -> bytes | None:
        # The mean over a run is another one with each threshold, at the last exit, where a run need not be full.
        if type(self).step is not ConfidentPatience.step or self.output_kind == "run_mean":
            return None
        return fingerprint(self, without=("entropy_threshold",))

    def scores(self, trace: ExitTrace) -> ScoreTable:
        """`patience` exits in a row are below a threshold where the largest of their entropies is."""
        doubts = [self.doubt(trace.exit_signals(number)) for number in range(1, trace.num_exits + 1)]
        before = [torch.full_like(doubts[0], math.inf)] * (self.patience - 1)
        largest = torch.stack(before + doubts, 1).unfold(1, self.patience, 1).amax(-1)
        return replace(stepped_table(self, trace), scores=-largest, higher_is_surer=False, strict=True)

    def limits(self) -> list[float]:
        return [-self.entropy_threshold] * (self.num_exits - 1)

    def to_config(self) -> dict[str, Any]:
        return {
            "type": "confident_patience",
            "patience": self.patience,
            "entropy_threshold": self.entropy_threshold,
            "output": self.output_kind,
        }
