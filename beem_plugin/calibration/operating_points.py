"""A policy at several speeds, and what each exit gives for single samples: the data of the page of texts."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.thresholds.joint import BudgetThresholds
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.metrics import main_score
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.threshold_strategy import as_strategy

SPEEDS = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0)


@dataclass
class OperatingPoint:
    """A policy, and what it does on the calibration trace; without a trace the last three are `None`."""

    policy: ExitPolicy
    is_current: bool  # the policy as calibrated, not one of the other speeds
    speedup: float | None = None  # in layers
    metric: float | None = None  # the task's; `None` without labels
    shares: list[float] | None = None  # of the samples at each exit

    @property
    def thresholds(self) -> list[float | None] | None:
        """Of each exit but the last, `None` for never; `None` for a policy without thresholds."""
        inner = threshold_policy(self.policy)
        if inner is None:
            return None
        return [value if isinstance(value, float | int) else None for value in inner.native_thresholds()]


def operating_points(
    policy: ExitPolicy, trace: ExitTrace | None, speeds: Sequence[float] = SPEEDS
) -> list[OperatingPoint]:
    """
    `policy` as it is and, if it has thresholds, at full depth and at `speeds`, as far as the trace reaches them; from
    slow to fast. What else the policy fitted stays as it is.
    """
    if trace is None or not len(trace):
        return [OperatingPoint(policy, True)]
    points = [measured(policy, trace, is_current=True)]
    for speed in (None, *speeds):
        other = with_budget(policy, trace, None if speed is None else BudgetThresholds(speedup=speed))
        if other is None:
            continue
        point = measured(other, trace)
        if all(point.shares != known.shares for known in points):
            points.append(point)
    return sorted(points, key=lambda point: point.speedup or 0.0)


def with_budget(policy: ExitPolicy, trace: ExitTrace, budget: BudgetThresholds | None) -> ExitPolicy | None:
    """A copy of a calibrated policy with other thresholds, if it has any; without a budget, no sample exits early."""
    found = copy.deepcopy(policy)
    inner = threshold_policy(found)
    if inner is None or trace.num_exits < 2:
        return None
    table = found.score_table(trace)  # type: ignore[attr-defined]
    if budget is None:
        inner.values = [inner.never] * (trace.num_exits - 1)
    else:
        inner.values = [table.orient(value) for value in budget.fit(table).thresholds]
    inner.strategy = as_strategy(inner.native_thresholds())
    return found


def measured(policy: ExitPolicy, trace: ExitTrace, is_current: bool = False) -> OperatingPoint:
    decisions = replay(policy, trace)
    depth = trace.depth(decisions.exits, policy)
    known = trace.known
    metric = None
    if bool(known.any()):
        metric = main_score(trace.metric, trace.labels[known].numpy(), decisions.predictions[known].numpy())
    shares = [count / len(trace) for count in depth["exit_histogram"]]
    return OperatingPoint(policy, is_current, float(depth["layer_speedup"]), metric, shares)


def threshold_policy(policy: ExitPolicy) -> ThresholdPolicy | None:
    """The policy with the thresholds: `policy`, or the one inside of it."""
    if isinstance(policy, ThresholdPolicy):
        return policy
    inner = getattr(policy, "policy", None)
    return threshold_policy(inner) if isinstance(inner, ExitPolicy) else None


def exit_readings(points: Sequence[OperatingPoint], trace: ExitTrace) -> list[dict[str, Any]]:
    """
    For each sample of `trace`, JSON-able: `exits`, what each exit gives (`label`, a number or a value; `confidence` and
    `score`, `None` if there is none), and at each of the points where it `leaves` and the `answers` there.
    """
    current = next(point.policy for point in points if point.is_current)
    current.bind(trace.exit_layers, trace.num_labels)
    state = current.start(len(trace), trace.num_exits)
    columns = []
    for number in range(1, trace.num_exits + 1):
        signals = trace.exit_signals(number)
        _, state = current.step(number, signals, state)
        score = current.score(state)
        none = [None] * len(trace)
        confidence = none if trace.is_regression else signals.confidence.tolist()
        columns.append((signals.prediction.tolist(), confidence, none if score is None else score.tolist()))
    decisions = [replay(point.policy, trace) for point in points]
    return [
        {
            "exits": [
                {"label": labels[row], "confidence": confidences[row], "score": scores[row]}
                for labels, confidences, scores in columns
            ],
            "leaves": [int(one.exits[row]) for one in decisions],
            "answers": [one.predictions[row].item() for one in decisions],
        }
        for row in range(len(trace))
    ]
