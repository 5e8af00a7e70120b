"""Exit after several exits in a row that agree, or that are confident."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.exits.policy import ExitPolicy, arguments_of
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.trace_interface import Trace


class CountingPolicy(ExitPolicy):
    """A sample exits after `patience` exits in a row at which `holds` is true."""

    uncounted: ClassVar[int] = 0  # exits before the first one that can count

    def __init__(self, patience: int) -> None:
        check_number("patience", patience, low=1)
        self.patience = patience

    def holds(self, signals: ExitSignals, state: ExitState) -> Tensor:
        """`(batch,)` bool: whether the exit counts."""
        raise TypeError(f"{type(self).__name__} does not define holds")

    def kept(self, exit_number: int, signals: ExitSignals, state: ExitState, count: Tensor) -> dict[str, Tensor]:
        """What is stored beside the count, the tensor `score`."""
        return {}

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return ExitState(score=self.zeros(batch_size, device))

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        count = torch.where(self.holds(signals, state), state["score"] + 1, torch.zeros_like(state["score"]))
        return count >= self.patience, ExitState(score=count, **self.kept(exit_number, signals, state, count))

    def can_leave(self, exit_number: int) -> bool:
        return exit_number >= self.patience + self.uncounted

    def scores(self, trace: Trace) -> ScoreTable:
        start = self.start(len(trace), trace.num_exits)
        return ScoreTable.of(trace, start, lambda *arguments: self.step(*arguments)[1], self.prediction)


@ExitPolicy.register("patience")
class Patience(CountingPolicy):
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

    uncounted: ClassVar[int] = 1  # the first exit has no predecessor
    speed_keys: ClassVar[tuple[str, ...] | None] = ("patience", "tolerance")
    serves_regression: ClassVar[bool] = True

    def __init__(self, patience: int, tolerance: float | None = None) -> None:
        super().__init__(patience)
        check_number("tolerance", tolerance, open_low=True)
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
        score = self.zeros(batch_size, device)
        # Exit 1 has no predecessor: no label is -1, and no value is close to infinity.
        none = torch.full((batch_size,), -1, dtype=torch.int64, device=device)
        return ExitState(prediction=none if self.tolerance is None else score + math.inf, score=score)

    def holds(self, signals: ExitSignals, state: ExitState) -> Tensor:
        if self.tolerance is None:
            return signals.prediction == state["prediction"]
        return (signals.prediction - state["prediction"]).abs() < self.tolerance

    def kept(self, exit_number: int, signals: ExitSignals, state: ExitState, count: Tensor) -> dict[str, Tensor]:
        return {"prediction": signals.prediction}

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        most = self.num_exits - 2
        if self.patience <= most or self.num_exits < 2:
            return []
        return [
            f"patience.patience: found {self.patience}, but exits before the last of {self.num_exits} agree {most} "
            "times in a row at most: no sample can exit before the last exit"
        ]

    def score_key(self) -> bytes | None:
        return self.key_without("patience") if type(self).step is CountingPolicy.step else None

    def limits(self) -> list[float]:
        return [float(self.patience)] * (self.num_exits - 1)


@ExitPolicy.register("confident_patience")
class ConfidentPatience(CountingPolicy):
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
        super().__init__(patience)
        check_number("entropy_threshold", entropy_threshold)
        check_choice("output", output, ("last", "run_mean", "mean"))
        self.entropy_threshold = entropy_threshold
        self.output_kind = output

    def normalized_entropy(self, signals: ExitSignals) -> Tensor:
        """`(batch,)` H / ln C"""
        return signals.entropy / math.log(self.num_labels)

    def holds(self, signals: ExitSignals, state: ExitState) -> Tensor:
        return self.normalized_entropy(signals) < self.entropy_threshold

    def kept(self, exit_number: int, signals: ExitSignals, state: ExitState, count: Tensor) -> dict[str, Tensor]:
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
            return signals.output
        pooled = state["pooled"]
        return pooled.clamp_min(torch.finfo(pooled.dtype).tiny).log()

    @property
    def needs_all_labels(self) -> bool:
        return self.output_kind != "last"

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        if self.num_exits > 1 and self.patience > self.num_exits - 1:
            problem = f"patience: found {self.patience}, but there are {self.num_exits - 1} exits before the last"
        elif self.entropy_threshold <= 0 and with_ends:
            problem = (
                f"entropy_threshold: found {self.entropy_threshold:g}, but the entropy must be below that and runs "
                "from 0 to 1"
            )
        else:
            return []
        return [f"confident_patience.{problem}: no sample can exit before the last exit"]

    def score_key(self) -> bytes | None:
        # At the last exit a run need not be full, so the mean over it depends on the threshold.
        if type(self).step is not CountingPolicy.step or self.output_kind == "run_mean":
            return None
        return self.key_without("entropy_threshold")

    def scores(self, trace: Trace) -> ScoreTable:
        """`patience` exits in a row are below a threshold where the largest of their entropies is."""
        entropies = [self.normalized_entropy(trace.exit_signals(number)) for number in range(1, trace.num_exits + 1)]
        before = [torch.full_like(entropies[0], math.inf)] * (self.patience - 1)
        largest = torch.stack(before + entropies, 1).unfold(1, self.patience, 1).amax(-1)
        return replace(super().scores(trace), scores=-largest, higher_is_more_confident=False, strict=True)

    def limits(self) -> list[float]:
        return [-self.entropy_threshold] * (self.num_exits - 1)

    def parameters(self) -> dict[str, Any]:
        return {**arguments_of(self, "output"), "output": self.output_kind}
