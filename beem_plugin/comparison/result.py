"""What one exit policy does on one trace, as data."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from beem_plugin.calibration.outcomes import Outcome, outcome_of
from beem_plugin.calibration.replay import ExitDecisions, replay
from beem_plugin.calibration.report import CalibrationReport
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.metrics import compute_metrics, count_metrics, metric_with_key
from beem_plugin.common.registry import Params
from beem_plugin.evaluation.statistics import (
    Interval,
    binomial_interval,
    percentile_interval,
    resampled_counts,
    speedup_interval,
)
from beem_plugin.exits.policy import ExitPolicy

ON_ITSELF = "calibrated on the very data it is judged on: these figures are too good"
DEPTH = ("layer_speedup", "layers_saved", "average_exit", "average_layer")


@dataclass
class PolicyResult:
    """
    # Parameters

    name : `str`
    n, num_exits : `int`
    metrics, final_metrics : `dict[str, float]`
        Under the policy, and of the last exit; empty without labels.
    depth : `dict[str, Any]`
        As `depth_summary` gives it.
    policy : `dict[str, Any]`
        The config, every number resolved.
    warnings : `list[str]`
    calibration : `dict[str, Any]`, optional
        The calibration report's JSON.
    setting : `dict[str, Any]`, optional
        The swept values, by dotted key; `None` for a policy without a grid.
    intervals : `dict[str, tuple[float, float]]`, optional
        95 % intervals: `layer_speedup`, `accuracy`, and of a single policy the other metrics.
    right : `np.ndarray`, optional
        `(labelled samples,)` bool of a single policy, for paired tests; not in JSON.
    """

    name: str
    n: int
    num_exits: int
    metrics: dict[str, float]
    final_metrics: dict[str, float]
    depth: dict[str, Any]
    policy: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    calibration: dict[str, Any] | None = None
    setting: dict[str, Any] | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)
    right: np.ndarray | None = None

    @property
    def layer_speedup(self) -> float:
        return float(self.depth["layer_speedup"])

    def to_json(self, trace: str | None = None) -> dict[str, Any]:
        """The object that `--output-file` holds; `trace` is the trace's name where there are several."""
        # A policy that wraps another one keeps the numbers in the inner block.
        inner = self.policy["policy"] if isinstance(self.policy.get("policy"), dict) else self.policy
        return {
            "name": self.name,
            **({} if trace is None else {"trace": trace}),
            **({} if self.setting is None else {"setting": self.setting}),
            "n": self.n,
            "num_exits": self.num_exits,
            "metrics": self.metrics,
            "final_metrics": self.final_metrics,
            **self.depth,
            "policy": self.policy,
            "weights": inner.get("weights"),
            "thresholds": inner.get("thresholds"),
            "warnings": self.warnings,
            "calibration": self.calibration,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
        }


def result_of(
    name: str,
    trace: ExitTrace,
    policy: ExitPolicy,
    outcome: Outcome,
    measured: dict[str, float],
    depth: dict[str, Any],
    final_metrics: dict[str, float],
    report: CalibrationReport | None = None,
    warnings: Sequence[str] = (),
    setting: dict[str, Any] | None = None,
) -> PolicyResult:
    """
    # Parameters

    policy : `ExitPolicy`
        Fitted.
    outcome : `Outcome`
        Of the policy on `trace`.
    measured, depth : `dict[str, Any]`
        Its metrics, and its depth as `depth_summary` gives it.
    final_metrics : `dict[str, float]`
        `measure` of the last exit.
    report : `CalibrationReport`, optional
    warnings : `Sequence[str]`, optional (default = `()`)
    setting : `dict[str, Any]`, optional
    """
    return PolicyResult(
        name=name,
        n=len(trace),
        num_exits=trace.num_exits,
        metrics=measured,
        final_metrics=dict(final_metrics),
        depth=depth,
        policy=policy.to_config(),
        warnings=[*([] if report is None else report.warnings), *warnings],
        calibration=None if report is None else report.to_json(),
        setting=setting,
        intervals=intervals_of(trace, outcome, measured, every=setting is None),
    )


def build(config: dict[str, Any], trace: ExitTrace) -> ExitPolicy:
    """The policy of `config`, bound to the network of `trace`."""
    policy = ExitPolicy.from_params(Params(copy.deepcopy(config)))
    policy.bind(trace.exit_layers, trace.num_labels)
    return policy


def replay_policy(
    config: dict[str, Any],
    trace: ExitTrace,
    calibration: ExitTrace | None,
    metrics: Sequence[str] = (),
    name: str = "policy",
) -> tuple[ExitPolicy, PolicyResult, ExitDecisions]:
    """
    # Parameters

    config : `dict[str, Any]`
        An exit policy's config.
    trace : `ExitTrace`
        What is judged on.
    calibration : `ExitTrace`, optional
        What open weights and thresholds are fitted on.
    metrics : `Sequence[str]`, optional (default = `()`)
        Beside accuracy and the task's own.
    name : `str`, optional

    # Returns

    `tuple[ExitPolicy, PolicyResult, ExitDecisions]`
        The fitted policy, its result, and its decisions.
    """
    policy = build(config, trace)
    report = None if calibration is None else policy.calibrate(calibration)
    itself = [ON_ITSELF] if calibration is not None and calibration.same_data(trace) else []
    decisions = replay(policy, trace)
    result = result_of(
        name,
        trace,
        policy,
        outcome_on(trace, decisions),
        measure(trace, decisions.predictions, metrics),
        trace.depth(decisions.exits),
        measure(trace, trace.predictions[:, -1], metrics),
        report,
        [*itself, *policy.out_of_reach()],
    )
    result.right = right_of(trace, decisions)
    return policy, result, decisions


def intervals_of(trace: ExitTrace, outcome: Outcome, measured: dict[str, float], every: bool) -> dict[str, Interval]:
    """Intervals of the speed-up and of accuracy (binomial), and with `every` of the other metrics (bootstrap)."""
    found: dict[str, Interval] = {}
    if not trace.has_independent_samples:
        return found
    if trace.token_depth is None and (speed := speedup_interval(outcome.exit_histogram, trace.exit_layers)):
        found["layer_speedup"] = speed
    if "accuracy" in measured:
        right = int(outcome.counts[outcome.labels == outcome.predictions].sum())
        found["accuracy"] = binomial_interval(right, int(outcome.counts.sum()))
    if every and measured and not trace.is_regression:
        for name in dict.fromkeys(map(metric_with_key, measured)):
            drawn = [count_metrics(name, *cells) for cells in _resampled(outcome)] if name != "accuracy" else []
            for key in measured.keys() - found.keys() if drawn else ():
                found[key] = percentile_interval([values[key] for values in drawn])
    return found


def _resampled(outcome: Outcome) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    for counts in resampled_counts(outcome.counts, draws=200):
        some = counts > 0
        yield outcome.labels[some], outcome.predictions[some], counts[some]


def outcome_on(trace: ExitTrace, decisions: ExitDecisions) -> Outcome:
    """Decisions on `trace`, counted."""
    return outcome_of(decisions.exits, decisions.predictions, trace.labels, trace.num_exits)


def right_of(trace: ExitTrace, decisions: ExitDecisions) -> np.ndarray | None:
    """`(labelled samples,)` bool: whether each prediction is right; `None` where that has no meaning."""
    if trace.is_regression or not trace.has_independent_samples or not bool(trace.known.any()):
        return None
    return np.asarray((decisions.predictions == trace.labels)[trace.known])


def measure(trace: ExitTrace, predictions: Tensor, metrics: Sequence[str] = ()) -> dict[str, float]:
    """
    Accuracy, the task's own metrics and those that give the numbers `metrics`, over the samples with a label; of a
    regression its own alone. Empty where there is no label.
    """
    known = trace.known
    if not bool(known.any()):
        return {}
    labels, given = trace.labels[known].numpy(), predictions[known].numpy()
    return {
        key: value for name in _names(trace, metrics) for key, value in compute_metrics(name, labels, given).items()
    }


def measure_outcome(trace: ExitTrace, outcome: Outcome, metrics: Sequence[str] = ()) -> dict[str, float]:
    """`measure` of an outcome on `trace`."""
    if not len(outcome.counts):
        return {}
    cells = outcome.labels, outcome.predictions, outcome.counts
    return {key: value for name in _names(trace, metrics) for key, value in count_metrics(name, *cells).items()}


def _names(trace: ExitTrace, metrics: Sequence[str]) -> list[str]:
    if trace.is_regression:
        return [trace.metric]
    return list(dict.fromkeys(["accuracy", trace.metric, *map(metric_with_key, metrics)]))
