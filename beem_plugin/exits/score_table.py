"""The scores of a policy on a set of samples: what threshold strategies, curves and replays of many policies share."""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.metrics import known_labels
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.trace_interface import Trace


@dataclass
class ScoreTable:
    """
    The numbers that a policy compares with its thresholds. Scores are *oriented*: larger means more confident
    (entropies are negated), so that one strategy serves every policy. No score depends on the thresholds.
    """

    scores: Tensor  # (samples, exits) oriented, in the decision precision; -inf where the policy allows no exit
    predictions: Tensor  # (samples, exits) int64, the label predicted at each exit; of a regression float64
    confidences: Tensor  # (samples, exits) the largest probability of the exit
    labels: Tensor  # (samples,) int64, -1 where unknown; of a regression floating, NaN where unknown
    exit_layers: list[int]
    higher_is_more_confident: bool = True  # oriented scores are the policy's own, not their negatives
    strict: bool = False  # a sample whose score equals the threshold does not exit
    metric: str = "accuracy"  # the task's
    published_grids: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # of the policy's paper, by strategy
    tolerance: float | None = None  # of a regression: values that differ by more count as different
    exit_costs: list[float] | None = None  # of exiting at each exit, in layers, branches included

    @classmethod
    def of(
        cls, trace: Trace, state: ExitState, step: Callable[..., ExitState], prediction: Callable[..., Tensor]
    ) -> "ScoreTable":
        """Of a policy whose score is the tensor `score` of its state; a larger or equal score passes."""
        columns: list[tuple[Tensor, Tensor, Tensor]] = []
        for exit_number in range(1, trace.num_exits + 1):
            signals = trace.exit_signals(exit_number)
            state = step(exit_number, signals, state)
            columns.append((state["score"], prediction(exit_number, signals, state), signals.confidence))
        scores, predictions, confidences = (torch.stack(column, 1) for column in zip(*columns, strict=True))
        own = {"metric": trace.metric, "exit_costs": trace.exit_costs}
        return cls(scores, predictions, confidences, trace.labels, trace.exit_layers, **own)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self.scores.shape[0]

    @property
    def num_exits(self) -> int:
        return self.scores.shape[1]

    @property
    def costs(self) -> list[float]:
        """`(exits,)` cost of exiting at each exit, in layers."""
        return self.exit_costs or list(self.exit_layers)

    @property
    def full_cost(self) -> float:
        """See `full_depth_cost`."""
        return full_depth_cost(self.exit_layers, self.costs)

    def passes(self, scores: Tensor, threshold: float | Tensor) -> Tensor:
        """Which of the oriented `scores` pass the oriented `threshold`."""
        return scores > threshold if self.strict else scores >= threshold

    def orient(self, threshold: float) -> float:
        """A threshold in the policy's own unit as an oriented one, and the reverse."""
        return threshold if self.higher_is_more_confident else -threshold

    def exits(self, thresholds: Sequence[float]) -> Tensor:
        """`(samples,)` int64: the exit of each sample under oriented `thresholds`, one per exit but the last."""
        passed = self.passes(self.scores, torch.tensor([*thresholds, 0.0], dtype=self.scores.dtype)).numpy()
        passed[:, -1] = True
        return torch.from_numpy(passed.argmax(1) + 1)  # numpy stops at the first true one

    def select(self, rows: Tensor) -> "ScoreTable":
        """The table of the samples at `rows`, a `(kept,)` int64 tensor, in that order."""
        names = ("scores", "predictions", "confidences", "labels")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def predictions_at(self, exits: Tensor) -> Tensor:
        """`(samples,)` the predicted label of each sample at its exit of `exits`."""
        return self.predictions.gather(1, (exits - 1).unsqueeze(1)).squeeze(1)

    @property
    def is_regression(self) -> bool:
        return self.predictions.is_floating_point()

    @property
    def known(self) -> Tensor:
        """`(samples,)` bool: whether the label is known."""
        return known_labels(self.labels)

    @property
    def wrong(self) -> Tensor:
        """`(samples, exits)` bool: whether the predicted label differs from the true one."""
        return self._differs_from(self.labels.unsqueeze(1))

    @property
    def disagrees(self) -> Tensor:
        """`(samples, exits)` bool: whether the predicted label differs from that of the last exit."""
        return self._differs_from(self.predictions[:, -1:])

    def _differs_from(self, other: Tensor) -> Tensor:
        if not self.is_regression:
            return self.predictions != other
        if self.tolerance is None:
            raise ConfigurationError("errors of a regression can be counted only within a tolerance: found none")
        # A difference of exactly the tolerance is no error; the margin allows for rounding.
        return (self.predictions - other).abs() > self.tolerance + 1e-9

    def squared_errors(self, other: Tensor) -> Tensor:
        """`(samples, exits)`: of a regression, the squared differences to the `(samples,)` values `other`."""
        return (self.predictions - other.to(self.predictions.dtype).unsqueeze(1)) ** 2

    def require_labels(self, strategy: str) -> None:
        """Raises a `ConfigurationError` unless every sample has a label and there is at least one."""
        self.require_samples(strategy)
        unknown = int((~self.known).sum())
        if unknown:
            raise ConfigurationError(
                f"{strategy} needs labelled calibration data: found {unknown} of {len(self)} samples without a label"
            )

    def require_samples(self, strategy: str) -> None:
        if len(self) == 0:
            raise ConfigurationError(f"{strategy}: found no calibration sample, needed: at least one")


def full_depth_cost(exit_layers: Sequence[int], exit_costs: Sequence[float]) -> float:
    """The cost in layers of the network without early exits and their branches, which speed-ups compare with."""
    branches = exit_costs[-2] - exit_layers[-2] if len(exit_layers) > 1 else 0
    return exit_costs[-1] - branches


class SharedScores:
    """The part of an `ExitPolicy` that separates scores from limits; by default nothing is separated."""

    def score_key(self) -> bytes | None:
        """
        All that the scores depend on, if samples exit at the first exit whose score passes a limit and no score
        depends on the limits; `None` otherwise. Policies with equal keys are replayed in one pass.
        """
        return None

    def scores(self, trace: Trace) -> ScoreTable:
        """The scores compared with `limits`, and the predicted labels; only with a `score_key`."""
        raise TypeError(f"{type(self).__name__} does not separate scores from limits")

    def limits(self) -> list[float]:
        """The oriented limits of `scores`, one per exit but the last; `inf` for never."""
        raise TypeError(f"{type(self).__name__} does not separate limits from scores")

    def key_without(self, *names: str) -> bytes | None:
        """The policy's class and attributes but `names`, as a `score_key`; `None` if an attribute is not picklable."""
        attributes = {name: value for name, value in vars(self).items() if name not in names}
        try:
            return pickle.dumps((type(self).__module__, type(self).__qualname__, attributes))
        except Exception:  # attributes of a user's class, such as locks, can raise errors of any type
            return None
