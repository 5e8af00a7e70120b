"""What can be shipped: plain networks, cascades of them, and rules on exits that are fitted for a speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.operating_points import with_budget
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.thresholds import NEVER
from beem_plugin.calibration.thresholds.joint import BudgetThresholds
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.comparison.calibrate import has_thresholds, with_thresholds
from beem_plugin.comparison.plain_networks import right_of_last_exit
from beem_plugin.comparison.result import build, fitted
from beem_plugin.comparison.worth_it.networks import CASCADE_RULE, Alternative, Networks, Plain, Traces
from beem_plugin.evaluation.statistics import Difference
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy

SPEEDS = (1.5, 2.0, 2.5, 3.0)
REACHED = 0.95
"""Thresholds are fitted on other data than they are measured on: a speed counts as reached from this share on."""


class Fitted(NamedTuple):
    """
    A policy fitted for a cost on one trace, and on another one `(samples,)` exits, which predictions are right (1.0),
    and the mean layers of a sample, branches included.
    """

    policy: ExitPolicy
    exits: Tensor
    right: np.ndarray
    cost: float


class Rule:
    """An exit policy on the traces of several seeds; all but thresholds, which are replaced, is fitted once."""

    def __init__(self, config: Mapping[str, Any], seeds: Sequence[Traces]) -> None:
        self._whole = [(fit_parameters(config, one.held_out), *one) for one in seeds]
        self._halves = []
        for one in seeds:
            half = torch.arange(len(one.held_out)) % 2 == 0
            parts = one.held_out.select(half), one.held_out.select(~half)
            self._halves += [(fit_parameters(config, first), first, other) for first, other in (parts, parts[::-1])]

    def fit(self, cost: float) -> list[Fitted]:
        """The rule at a mean cost in layers: fitted on each seed's held-out data, measured on the reported data."""
        return [decide(config, cost, held_out, reported) for config, held_out, reported in self._whole]

    def held_out_accuracy(self, cost: float) -> float | None:
        """
        Accuracy at a mean cost in layers, fitted on one half of held-out data, measured on the other; `None` if not
        reached.
        """
        found = [decide(config, cost, first, other) for config, first, other in self._halves]
        spent = float(np.mean([one.cost for one in found]))
        return float(np.mean([one.right.mean() for one in found])) if REACHED * spent <= cost else None


def best_rule(rules: Mapping[str, Rule], cost: float) -> str | None:
    """The name of the rule with the highest held-out accuracy; the first one of equals, `None` if none gets there."""
    found = {name: rule.held_out_accuracy(cost) for name, rule in rules.items()}
    reached = {name: value for name, value in found.items() if value is not None}
    return max(reached, key=reached.__getitem__) if reached else None


def fit_parameters(config: Mapping[str, Any], trace: ExitTrace) -> dict[str, Any]:
    """The policy with weights, temperatures, ... fitted on `trace`; thresholds, if it has any, are open: "never"."""
    return fitted(with_thresholds(dict(config), NEVER) if has_thresholds(config) else config, trace).to_config()


def decide(config: dict[str, Any], cost: float, fit_on: ExitTrace, trace: ExitTrace) -> Fitted:
    """The policy with thresholds for a mean cost in layers on `fit_on`, and its decisions on `trace`."""
    policy = build(config, fit_on)
    policy = with_budget(policy, fit_on, BudgetThresholds(budget=cost)) or policy
    decisions = replay(policy, trace)
    costs = torch.tensor(trace.costs_under(policy), dtype=torch.float64)[decisions.exits - 1]
    right = (decisions.predictions == trace.labels).double().numpy()
    return Fitted(policy, decisions.exits, right, float(costs.mean()))


@dataclass
class Option:
    """Something that can be shipped; speeds are relative to the plain network of full depth, of `depth` layers."""

    name: str
    kind: str  # `"plain"`, `"cascade"` or `"exits"`
    depth: int
    fitted: list[Fitted]  # one a seed; a plain network has one exit
    fitted_for: float | None = None  # the speed; `None` of a plain network
    members: tuple[Plain, ...] = ()  # the plain networks that it is made of
    against_full: Difference | None = None  # of accuracy, from the plain network of full depth
    against_plain: dict[str, Difference] = field(default_factory=dict)
    """Of exits: from plain networks or their cascade at equal layers, and at equal seconds by way of running."""
    measured: dict[str, float] = field(default_factory=dict)
    """Measured speed-up over the plain network of full depth, by way of running."""

    def __post_init__(self) -> None:
        self.right = np.stack([one.right for one in self.fitted])  # (seeds, samples)

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())

    @property
    def cost(self) -> float:
        """Mean layers a sample."""
        return float(np.mean([one.cost for one in self.fitted]))

    @property
    def layer_speedup(self) -> float:
        return self.depth / self.cost

    @property
    def key(self) -> str:
        """The name, unique among all options."""
        return self.name if self.fitted_for is None else f"{self.name}, {self.fitted_for:g}x"

    @property
    def family(self) -> str:
        """What it shares a curve with."""
        return Alternative(self.members).name if self.kind == "plain" else self.name

    @property
    def figures(self) -> str:
        return f"({100 * self.accuracy:.1f} %, {self.layer_speedup:.2f}x)"

    def to_json(self) -> dict[str, Any]:
        seeds = zip(self.right.mean(1).tolist(), self.fitted, strict=True)
        return {
            "name": self.key,
            "kind": self.kind,
            "fitted_for": self.fitted_for,
            "accuracy": self.accuracy,
            "layer_speedup": self.layer_speedup,
            "measured_speedup": self.measured,
            "against_full_depth": self.against_full and self.against_full.to_json(),
            "against_plain_at_equal": {unit: found.to_json() for unit, found in self.against_plain.items()},
            "seeds": [{"accuracy": value, "layer_speedup": self.depth / one.cost} for value, one in seeds],
            "policies": [one.policy.to_config() for one in self.fitted if self.kind != "plain"],
        }


def choose_options(
    networks: Networks,
    rules: Mapping[str, Mapping[str, Any]],
    speeds: Sequence[float] = SPEEDS,
    cascades: Sequence[tuple[int, ...]] | None = None,
) -> tuple[list[Option], dict[float, tuple[Option | None, Alternative]]]:
    """
    All plain networks, and for each speed, in layers, the rule and the alternative that are best on held-out data; a
    cascade among these is an option, too. `rules` are configs by name, `cascades` depths (default: all pairs).
    """
    options = []
    for plain in sorted(networks.plain, reverse=True):
        right = [right_of_last_exit(traces.reported) for traces in networks.plain[plain]]
        only = [Fitted(Final(), torch.ones(len(one), dtype=torch.int64), one, plain.layers) for one in right]
        options.append(Option(plain.name, "plain", networks.depth, only, members=(plain,)))
    chosen: dict[float, tuple[Option | None, Alternative]] = {}
    on_exits = {name: Rule(rule, networks.exits) for name, rule in rules.items()}
    for speed in speeds:
        cost = networks.depth / speed
        alternative = best_alternative(networks, networks.alternatives(cascades), cost)
        if alternative.is_cascade:
            fitted = Rule(CASCADE_RULE, networks.cascade(alternative)).fit(cost)
            options.append(Option(alternative.name, "cascade", networks.depth, fitted, speed, alternative.members))
        exits, best = None, best_rule(on_exits, cost)
        if best is not None:
            exits = Option(f"early exit with {best}", "exits", networks.depth, on_exits[best].fit(cost), speed)
            options.append(exits)
        # On other data than held-out ones it may be slower or faster: it is compared at the cost that it then has.
        chosen[speed] = (exits, alternative)
    return options, chosen


def best_alternative(networks: Networks, alternatives: Sequence[Alternative], cost: float) -> Alternative:
    """The alternative with the highest held-out accuracy at a mean cost in layers, the simplest one of equals."""
    reaching = [one for one in alternatives if REACHED * one.members[0].layers <= cost]
    return max(reaching or alternatives[:1], key=lambda one: float(networks.right_at(one, cost, "held_out").mean()))
