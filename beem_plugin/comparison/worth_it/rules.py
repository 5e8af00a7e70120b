"""Rules fitted for a speed on held-out data, and the choice between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.curves import native
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.thresholds import NEVER
from beem_plugin.calibration.thresholds.budget import BudgetThresholds
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.comparison.calibrate import has_thresholds, with_thresholds
from beem_plugin.comparison.result import build
from beem_plugin.comparison.worth_it.networks import Traces
from beem_plugin.exits.policy import ExitPolicy

REACHED = 0.95
"""Thresholds are fitted on other data than they are measured on: a speed counts as reached from this share on."""


@dataclass
class Fitted:
    """
    A rule that was fitted for one speed, on each seed's held-out data.

    # Parameters

    policies : `list[ExitPolicy]`
        One a seed.
    exits : `list[Tensor]`
        `(samples,)` int64 of each seed, on the reported data.
    right : `ndarray`
        `(seeds, samples)` 1.0 where the prediction is right.
    costs : `list[float]`
        Mean layers a sample of each seed, branches included.
    """

    policies: list[ExitPolicy]
    exits: list[Tensor]
    right: np.ndarray
    costs: list[float]

    @property
    def cost(self) -> float:
        return float(np.mean(self.costs))


class Rule:
    """
    An exit policy on the traces of several seeds; what it has to learn but thresholds is fitted once.

    # Parameters

    config : `dict`
        The policy's; thresholds in it are replaced.
    seeds : `Sequence[Traces]`
    """

    def __init__(self, config: Mapping[str, Any], seeds: Sequence[Traces]) -> None:
        self.config = dict(config)
        self._whole = [(fit_parameters(config, one.held_out), one.held_out, one.reported) for one in seeds]
        self._halves = []
        for one in seeds:
            half = torch.arange(len(one.held_out)) % 2 == 0
            parts = one.held_out.select(half), one.held_out.select(~half)
            self._halves += [(fit_parameters(config, first), first, other) for first, other in (parts, parts[::-1])]

    def fit(self, cost: float) -> Fitted:
        """The rule at a mean cost in layers: fitted on each seed's held-out data, measured on the reported data."""
        found = [decide(config, cost, held_out, reported) for config, held_out, reported in self._whole]
        policies, exits, right, costs = map(list, zip(*found, strict=True))
        return Fitted(policies, exits, np.stack(right), costs)

    def held_out_accuracy(self, cost: float) -> float | None:
        """
        Accuracy on the held-out data at a mean cost in layers, fitted on one half and measured on the other, both ways;
        `None` if the rule does not get there.
        """
        found = [decide(config, cost, first, other) for config, first, other in self._halves]
        spent = float(np.mean([one[3] for one in found]))
        return float(np.mean([one[2].mean() for one in found])) if REACHED * spent <= cost else None


def best_rule(rules: Mapping[str, Rule], cost: float) -> str | None:
    """The name of the rule with the highest held-out accuracy; the first one of equals, `None` if none gets there."""
    found = {name: rule.held_out_accuracy(cost) for name, rule in rules.items()}
    reached = {name: value for name, value in found.items() if value is not None}
    return max(reached, key=reached.__getitem__) if reached else None


def fit_parameters(config: Mapping[str, Any], trace: ExitTrace) -> dict[str, Any]:
    """The policy with weights, temperatures, ... fitted on `trace`; thresholds, if it has any, are open: "never"."""
    policy = build(with_thresholds(dict(config), NEVER) if has_thresholds(config) else config, trace)
    if not policy.is_calibrated:
        policy.calibrate(trace)
    return policy.to_config()


def decide(
    config: dict[str, Any], cost: float, fit_on: ExitTrace, trace: ExitTrace
) -> tuple[ExitPolicy, Tensor, np.ndarray, float]:
    """
    The policy, its thresholds fitted for a mean cost in layers on `fit_on`; of `trace` the exits, which predictions are
    right, and the mean layers of a sample.
    """
    policy = build(config, fit_on)
    if has_thresholds(config) and policy.score_key() is None:
        policy = build(with_thresholds(config, {"type": "budget", "budget": cost}), fit_on)
        policy.calibrate(fit_on)
    elif has_thresholds(config):
        table = policy.scores(fit_on)
        limits = BudgetThresholds(budget=cost).fit(table).thresholds
        policy = build(with_thresholds(config, [native(table, limit) for limit in limits]), fit_on)
    decisions = replay(policy, trace)
    costs = torch.tensor(trace.costs_under(policy), dtype=torch.float64)[decisions.exits - 1]
    return policy, decisions.exits, (decisions.predictions == trace.labels).double().numpy(), float(costs.mean())
