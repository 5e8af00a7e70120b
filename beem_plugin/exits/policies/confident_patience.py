"""Exit when consecutive exits are confident."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.trace_interface import Trace

OUTPUTS = ("last", "run_mean", "mean")


@ExitPolicy.register("confident_patience")
class ConfidentPatience(ExitPolicy):
    """
    PCEE-BERT (Zhang et al. 2022, section 3.2): an exit is confident if its normalized entropy H / ln C is below
    `entropy_threshold`, strictly; a sample exits after `patience` confident exits in a row, so at exit `patience` at
    the earliest (one exit earlier than the policy `patience`). The exits need not agree on the label.

    Registered as an `ExitPolicy` with name "confident_patience".

    # Parameters

    patience : `int`
        Confident exits in a row, 1 or more.
    entropy_threshold : `float`
        Fraction of ln C. The released script tries nine values from 1/18 to 0.5.
    output : `str`, optional (default = `"last"`)
        The output: `"last"`, the exit's own probabilities; `"run_mean"`, their mean over the run of confident exits (at
        a last exit without such a run, its own); `"mean"`, their mean over all exits so far. The release has all three.
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

    def normalized_entropy(self, signals: ExitSignals) -> Tensor:
        """`(batch,)` H / ln C"""
        return signals.entropy / math.log(self.num_labels)

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return ExitState(score=self.zeros(batch_size, device))

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        confident = self.normalized_entropy(signals) < self.entropy_threshold
        count = torch.where(confident, state["score"] + 1, torch.zeros_like(state["score"]))
        state = ExitState(score=count, **self.pool(exit_number, signals, state, count))
        return count >= self.patience, state

    def _state_after(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        return self.step(exit_number, signals, state)[1]

    def pool(self, exit_number: int, signals: ExitSignals, state: ExitState, count: Tensor) -> dict[str, Tensor]:
        """`pooled`, `(batch, labels)`: the mean probabilities that `output` selects."""
        if self.output_kind == "last":
            return {}
        own = signals.probabilities
        if exit_number == 1:
            return {"pooled": own}
        # The running mean; an exit that is not confident restarts it.
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
        consequence = "no sample can exit before the last exit"
        if self.num_exits > 1 and self.patience > self.num_exits - 1:
            return [
                f"confident_patience.patience: found {self.patience}, but there are {self.num_exits - 1} exits before "
                f"the last: {consequence}"
            ]
        if self.entropy_threshold <= 0 and with_ends:
            return [
                f"confident_patience.entropy_threshold: found {self.entropy_threshold:g}, but the entropy must be "
                f"below that and runs from 0 to 1: {consequence}"
            ]
        return []

    def score_key(self) -> bytes | None:
        # At the last exit a run need not be full, so the mean over it depends on the threshold.
        if type(self).step is not ConfidentPatience.step or self.output_kind == "run_mean":
            return None
        return self.fingerprint(without=("entropy_threshold",))

    def scores(self, trace: Trace) -> ScoreTable:
        """`patience` exits in a row are below a threshold where the largest of their entropies is."""
        entropies = [self.normalized_entropy(trace.exit_signals(number)) for number in range(1, trace.num_exits + 1)]
        before = [torch.full_like(entropies[0], math.inf)] * (self.patience - 1)
        largest = torch.stack(before + entropies, 1).unfold(1, self.patience, 1).amax(-1)
        table = ScoreTable.of(trace, self.start(len(trace), trace.num_exits), self._state_after, self.prediction)
        return replace(table, scores=-largest, higher_is_more_confident=False, strict=True)

    def limits(self) -> list[float]:
        return [-self.entropy_threshold] * (self.num_exits - 1)

    def to_config(self) -> dict[str, Any]:
        return {
            "type": "confident_patience",
            "patience": self.patience,
            "entropy_threshold": self.entropy_threshold,
            "output": self.output_kind,
        }
