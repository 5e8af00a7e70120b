"""What one exit policy does on one trace, as data."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from beem_plugin.calibration.curves import Curve
from beem_plugin.calibration.replay import ExitDecisions, Outcome
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.metrics import count_metrics, metric_with_key
from beem_plugin.common.registry import Params
from beem_plugin.evaluation.statistics import Interval, metric_intervals, speedup_interval
from beem_plugin.exits.policy import ExitPolicy

ON_ITSELF = "calibrated on the very data it is judged on: these figures are too good"
DEPTH = ("layer_speedup", "layers_saved", "average_exit", "average_layer")


@dataclass
class PolicyResult:
    """
    `metrics` and `depth` (see `depth_summary`) under the policy of `n` samples, and `final_metrics` of the last exit;
    `policy`, its config with all fitted values; `setting`, the swept values by dotted key, `None` for a policy without
    a grid; 95 % `intervals` of `layer_speedup`, `accuracy`, and of a single policy the other metrics. `right`,
    `(labelled samples,)` bool of a single policy, is for paired tests and not in JSON.
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


def build(config: Mapping[str, Any], network: Any) -> ExitPolicy:
    """The policy of `config`, bound to a network or a trace: what has `exit_layers` and `num_labels`."""
    policy = ExitPolicy.from_params(Params(copy.deepcopy(dict(config))))
    policy.bind(network.exit_layers, network.num_labels)
    return policy


def fitted(config: Mapping[str, Any], trace: ExitTrace) -> ExitPolicy:
    """The policy of `config`, its open numbers fitted on the trace."""
    policy = build(config, trace)
    if not policy.is_calibrated:
        policy.calibrate(trace)
    return policy


def check_same_network(
    flag: str, path: str, trace: ExitTrace, other_path: str, network: Any, names: Sequence[str] | None
) -> None:
    """Raises a `ConfigurationError` if a trace cannot come from a network with labels `names`, or of another trace."""
    for what, found, expected in (
        ("exits", trace.exit_layers, list(network.exit_layers)),
        ("labels", trace.num_labels, network.num_labels),
        ("label names", trace.meta.get("label_names"), names),
    ):
        # A trace that was made elsewhere may have no names.
        if found != expected and None not in (found, expected):
            raise ConfigurationError(f"{flag}: {path} has {what} {found}, found {expected} in {other_path}")


def intervals_of(
    trace: ExitTrace, policy: ExitPolicy, outcome: Outcome, measured: dict[str, float], bootstrap: bool
) -> dict[str, Interval]:
    """Intervals of the speed-up and of accuracy, and with `bootstrap` of the other metrics."""
    if not trace.has_independent_samples:
        return {}
    found: dict[str, Interval] = {}
    speed = speedup_interval(outcome.exit_histogram, trace.exit_layers, trace.costs_under(policy))
    if trace.token_depth is None and speed is not None:
        found["layer_speedup"] = speed
    if measured and not trace.is_regression:
        names = dict.fromkeys(map(metric_with_key, measured)) if bootstrap else ()
        intervals = metric_intervals(names, outcome.labels, outcome.predictions, outcome.counts)
        found |= {key: intervals[key] for key in measured if key in intervals}
    return found


def right_of(trace: ExitTrace, decisions: ExitDecisions) -> np.ndarray | None:
    """`(labelled samples,)` bool: whether each prediction is right; `None` where that has no meaning."""
    if trace.is_regression or not trace.has_independent_samples or not bool(trace.known.any()):
        return None
    return np.asarray((decisions.predictions == trace.labels)[trace.known])


def measure(trace: ExitTrace, predictions: Tensor, metrics: Sequence[str] = ()) -> dict[str, float]:
    """`measure_outcome` of `(samples,)` predictions, over the samples with a label."""
    known = trace.known
    labels, given = trace.labels[known].numpy(), predictions[known].numpy()
    return measure_outcome(trace, Outcome([], labels, given, np.ones(len(labels), dtype=np.int64)), metrics)


def measure_outcome(trace: ExitTrace, outcome: Outcome, metrics: Sequence[str] = ()) -> dict[str, float]:
    """Accuracy, the task's metrics and those of `metrics`; of a regression its own alone; empty without labels."""
    if not len(outcome.counts):
        return {}
    names = [trace.metric] if trace.is_regression else ["accuracy", trace.metric, *map(metric_with_key, metrics)]
    cells = outcome.labels, outcome.predictions, outcome.counts
    return {key: value for name in dict.fromkeys(names) for key, value in count_metrics(name, *cells).items()}


def fixed_exits(trace: ExitTrace, metric: str) -> Curve:
    """All samples at one exit, from the last exit to the first."""
    columns = range(trace.num_exits - 1, -1, -1)
    values = [measure(trace, trace.predictions[:, column], [metric])[metric] for column in columns]
    return Curve(np.array(values), np.array(trace.fixed_speedups()[::-1]), [column + 1 for column in columns])


@dataclass(frozen=True)
class SplitCost:
    """
    SplitEE (Bajpai et al. 2023): layers up to `layer` run on the edge device, with their exits; a sample that exits at
    none of them is sent to the cloud, where the other layers and exits run.
    """

    layer: int  # the last layer on the edge
    offload: float = 1.0  # the price of sending a sample, in layers of the edge device

    def __post_init__(self) -> None:
        check_number("--edge-layers", self.layer, 1)
        check_number("--offload-cost", self.offload)

    def figures(self, exit_histogram: Sequence[int], exit_layers: Sequence[int]) -> dict[str, float]:
        """`offloaded`, the share of samples that are sent; `edge_cost`, layers on the edge and sending, per sample."""
        if self.layer >= exit_layers[-1]:
            raise ConfigurationError(
                f"--edge-layers: found {self.layer}, allowed: 1 to {exit_layers[-1] - 1} of {exit_layers[-1]} layers"
            )
        samples = sum(exit_histogram)
        both = list(zip(exit_histogram, exit_layers, strict=True))
        sent = sum(count for count, layer in both if layer > self.layer)
        run = sum(count * min(layer, self.layer) for count, layer in both)
        return {"offloaded": sent / samples, "edge_cost": (run + self.offload * sent) / samples}
