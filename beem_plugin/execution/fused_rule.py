"""A policy in the numbers that the fused kernel takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from beem_plugin.execution.metering.baselines import NeverLeaves
from beem_plugin.exits.policies import Beem, Entropy, Final, FixedExit, Margin, MaxProbability, Patience
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy

NO_SCORE, BEEM, CONFIDENCE, PATIENCE, ENTROPY, MARGIN = range(6)
"""As in `fused_kernels.py`, which cannot be imported everywhere."""


@dataclass
class FusedRule:
    """
    # Parameters

    kind : `int`
        The score.
    surer, strict : `bool`
        How it is compared: see `ThresholdPolicy`.
    restart : `bool`
        BEEM's `on_disagreement`.
    numbers : `list[tuple[float, float, float, float]]`
        For each exit: weight or divisor, threshold, whether everybody leaves, whether it is the first.
    """

    kind: int
    surer: bool
    strict: bool
    restart: bool
    numbers: list[tuple[float, float, float, float]]

    @property
    def has_score(self) -> bool:
        return self.kind != NO_SCORE


def fused_rule(policy: ExitPolicy) -> FusedRule | None:
    """`None` for a rule that the kernel does not know; subclasses are such. The policy is bound and calibrated."""
    if policy.num_labels == 1:
        return None  # the kernel gives log-probabilities
    if type(policy) is NeverLeaves:
        rule = fused_rule(policy.policy)
        if rule is None:
            return None
        nobody = math.inf if rule.surer else -math.inf
        numbers = [(factor, nobody, 0.0, first) for factor, _, _, first in rule.numbers]
        return FusedRule(rule.kind, rule.surer, rule.strict, rule.restart, numbers)
    kind = type(policy)
    exits = range(1, policy.num_exits + 1)
    if isinstance(policy, Final | FixedExit) and kind in (Final, FixedExit):
        least = policy.exit if isinstance(policy, FixedExit) else policy.num_exits
        return FusedRule(
            NO_SCORE, True, False, True, [(1.0, math.inf, float(e >= least), float(e == 1)) for e in exits]
        )
    if isinstance(policy, Patience) and kind is Patience:
        limit = float(policy.patience)
        return FusedRule(PATIENCE, True, False, True, [(1.0, limit, 0.0, float(e == 1)) for e in exits])
    if not isinstance(policy, ThresholdPolicy) or policy.values is None:
        return None
    thresholds = [policy.values[e - 1] if policy.min_exit <= e < policy.num_exits else policy.never for e in exits]
    factors, restart = [1.0] * policy.num_exits, True
    if isinstance(policy, Beem) and kind is Beem:
        assert policy.weights is not None, "calibrated before use"
        score, factors, restart = BEEM, list(policy.weights), policy.on_disagreement == "restart"
    elif isinstance(policy, MaxProbability) and kind is MaxProbability and policy.fallback == "last":
        score = CONFIDENCE
    elif isinstance(policy, Entropy) and kind is Entropy:
        score, factors = ENTROPY, [math.log(policy.num_labels) if policy.normalized else 1.0] * policy.num_exits
    elif kind is Margin:
        score = MARGIN
    else:
        return None
    numbers = [
        (factor, threshold, float(e == policy.num_exits), float(e == 1))
        for e, factor, threshold in zip(exits, factors, thresholds, strict=True)
    ]
    return FusedRule(score, policy.higher_is_more_confident, policy.strict, restart, numbers)
