"""Rules held against each other: what is fitted on calibration data, and what is read off another trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from beem_plugin.calibration.curves import Curve, policy_curve, threshold_curve
from beem_plugin.calibration.thresholds import ScoreTable
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.comparison.result import build

NEVER = {"thresholds": "never"}
"""A stand-in: the score is fitted, and thresholds are swept afterwards."""

Scored = Callable[[ExitTrace], ScoreTable]
"""A rule's score, fitted, as a function of a trace."""


def fitted(config: Mapping[str, Any], trace: ExitTrace) -> Scored:
    """The rule's score as a function of a trace, fitted on `trace`."""
    policy = build(config, trace)
    policy.calibrate(trace)

    def table(other: ExitTrace) -> ScoreTable:
        policy.bind(other.exit_layers, other.num_labels)
        return policy.score_table(other)  # type: ignore[attr-defined]

    return table


def swept(config: Mapping[str, Any]) -> Callable[[ExitTrace], Scored]:
    """`fitted`, for later."""
    return lambda trace: fitted({**config, **NEVER}, trace)


def confident_patience(patience: int) -> Callable[[ExitTrace], Scored]:
    """
    `patience` exits in a row below an entropy are one exit at which the largest of the last `patience` entropies is: so
    all of the rule's entropy thresholds are one sweep.
    """

    def fit(trace: ExitTrace) -> Scored:
        entropy = fitted({"type": "entropy", **NEVER}, trace)

        def table(other: ExitTrace) -> ScoreTable:
            found = entropy(other)
            lacking = torch.full((len(found), patience - 1), -math.inf, dtype=found.scores.dtype)
            scores = torch.cat([lacking, found.scores], 1).unfold(1, patience, 1).amin(-1)
            return replace(found, scores=scores)

        return table

    return fit


def swept_table(fits: Sequence[Callable[[ExitTrace], Scored]], calibration: ExitTrace, other: ExitTrace) -> ScoreTable:
    """The scores of `other`, by that of the `fits` whose curve on the calibration data has the largest area."""
    scored = [fit(calibration) for fit in fits]
    areas = [threshold_curve(table(calibration)).area() for table in scored] if len(scored) > 1 else [None]
    found = [-math.inf if area is None else area for area in areas]
    return scored[found.index(max(found))](other)


def settings_curve(configs: Sequence[Mapping[str, Any]], trace: ExitTrace) -> Curve:
    """One point a config."""
    return policy_curve([build(config, trace) for config in configs], trace, [str(dict(config)) for config in configs])
