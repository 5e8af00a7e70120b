"""The settings of a policy on a trace. Settings that differ only along the accuracy-speed curve are one family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beem_plugin.calibration.curves import SPEEDS, Curve, metric_curve, native
from beem_plugin.calibration.replay import replay_many
from beem_plugin.calibration.report import CalibrationReport
from beem_plugin.calibration.thresholds import NEVER
from beem_plugin.calibration.thresholds.grid import ThresholdGrid
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.comparison.policy_files import NamedPolicy
from beem_plugin.comparison.policy_grid import Quantiles, Setting, describe
from beem_plugin.comparison.result import ON_ITSELF, PolicyResult, build, measure, measure_outcome, result_of
from beem_plugin.exits.policy import ExitPolicy

CURVE_POINTS = 200


@dataclass
class Family:
    """
    # Parameters

    name : `str`
    settings : `list[Setting]`
        Without `Quantiles`.
    policies : `list[ExitPolicy]`
        Fitted, one a setting.
    reports : `list[CalibrationReport | None]`
        Of settings that were calibrated one by one.
    """

    name: str
    settings: list[Setting]
    policies: list[ExitPolicy]
    reports: list[CalibrationReport | None]


@dataclass
class FamilyResult:
    """
    # Parameters

    name : `str`
    results : `list[PolicyResult]`
    curve : `Curve`, optional (default = `None`)
    """

    name: str
    results: list[PolicyResult]
    curve: Curve | None = None

    def summary(self, metric: str) -> dict[str, Any]:
        """
        Of a family with a curve: `metric`, its value at the last exit (`final`), `area` from 1x to 3x in points, and
        the value `at` 1.5x, 2x, 2.5x; `None` where the curve does not reach.
        """
        assert self.curve is not None
        final = self.results[0].final_metrics[metric]
        at = {str(speed): self.curve.at(speed) for speed in SPEEDS}
        return {"metric": metric, "final": final, "area": self.curve.area(), "at": at}


@dataclass
class TraceResult:
    """
    # Parameters

    name : `str | None`
        `None` if it is the only one.
    trace : `ExitTrace`
    families : `list[FamilyResult]`
    """

    name: str | None
    trace: ExitTrace
    families: list[FamilyResult]


def fit_families(policy: NamedPolicy, trace: ExitTrace, calibration: ExitTrace | None) -> list[Family]:
    """Builds the settings of `policy`; a fit that several settings share is made once a family."""
    groups: dict[str, list[Setting]] = {}
    for setting in policy.settings:
        groups.setdefault(describe(setting.apart), []).append(setting)
    families = []
    for label, settings in groups.items():
        fitting = _Fitting(trace, calibration)
        resolved = [one for setting in settings for one in fitting.without_quantiles(setting)]
        fitted = [fitting.fit(setting) for setting in resolved]
        name = f"{policy.name} {label}" if label else policy.name
        families.append(Family(name, resolved, [one for one, _ in fitted], [report for _, report in fitted]))
    return families


def judge_families(
    families: Sequence[Family], trace: ExitTrace, calibration: ExitTrace | None, metrics: Sequence[str] = ()
) -> list[FamilyResult]:
    """Replays every setting of every family on `trace`, in one pass."""
    places = [(number, index) for number, family in enumerate(families) for index in range(len(family.settings))]
    policies = [families[number].policies[index] for number, index in places]
    final = measure(trace, trace.predictions[:, -1], metrics)
    itself = [ON_ITSELF] if calibration is not None and calibration.same_data(trace) else []
    found: dict[tuple[int, int], PolicyResult] = {}
    for place, outcome in replay_many(policies, trace):
        number, index = places[place]
        family, policy = families[number], policies[place]
        setting = family.settings[index]
        found[number, index] = result_of(
            f"{family.name}{', ' if setting.apart and setting.along else ' '}{describe(setting.along)}".rstrip(),
            trace,
            policy,
            outcome,
            measure_outcome(trace, outcome, metrics),
            trace.histogram_depth(outcome.exit_histogram),
            final,
            family.reports[index],
            [*itself, *policy.out_of_reach(with_ends=False)],
            setting.swept,
        )
    return [
        FamilyResult(family.name, [found[number, index] for index in range(len(family.settings))])
        for number, family in enumerate(families)
    ]


def family_curve(
    policy: ExitPolicy, results: Sequence[PolicyResult], trace: ExitTrace, metric: str, sweep: bool
) -> Curve | None:
    """
    The curve of a family: through its settings and full depth, or, with `sweep`, of every limit that makes a difference
    where the rule has a score. `None` without labels, or if there is nothing to draw.

    # Parameters

    policy : `ExitPolicy`
        Any of the family's, fitted.
    results : `Sequence[PolicyResult]`
        Those of its settings.
    trace : `ExitTrace`
    metric : `str`
        The number to be drawn: `accuracy`, `matthews`, ...
    sweep : `bool`
    """
    known = trace.known.nonzero().flatten()
    if len(known) == 0:
        return None
    if sweep and policy.score_key() is not None and trace.num_exits > 1:
        labelled = trace if len(known) == len(trace) else trace.select(known)
        return metric_curve(policy.scores(labelled), metric)
    if len({result.layer_speedup for result in results}) < 2:
        return None
    ordered = sorted(results, key=lambda result: result.layer_speedup)
    curve = Curve(
        np.array([result.metrics[metric] for result in ordered], dtype=np.float64),
        np.array([result.layer_speedup for result in ordered], dtype=np.float64),
        [result.name for result in ordered],
    )
    return curve.with_full_depth(ordered[0].final_metrics[metric])


class _Fitting:
    """Builds and fits the settings of one family."""

    def __init__(self, trace: ExitTrace, calibration: ExitTrace | None) -> None:
        self.trace = trace
        self.calibration = calibration
        self.prototype: ExitPolicy | None = None

    def fit(self, setting: Setting) -> tuple[ExitPolicy, CalibrationReport | None]:
        policy = build(setting.config, self.trace)
        if self.calibration is None:
            return policy, None
        if not policy.shares_fit:
            return policy, policy.calibrate(self.calibration)
        policy.adopt(self._fitted(setting.config))
        return policy, None

    def without_quantiles(self, setting: Setting) -> list[Setting]:
        """`setting`, or one for each of the thresholds that its `Quantiles` stand for."""
        open_keys = [key for key, value in setting.along.items() if isinstance(value, Quantiles)]
        if not open_keys:
            return [setting]
        key, count = open_keys[0], setting.along[open_keys[0]].count
        policy = build(_with(setting.config, key, NEVER), self.trace)
        if self.calibration is not None:
            policy.calibrate(self.calibration)
        policy.check_calibrated()
        if policy.score_key() is None:
            raise ConfigurationError(
                f"{key}.quantiles: found {policy.registered_name}, which has no scores apart from its thresholds; "
                'allowed: {"grid": [..]} or {"linspace": [from, to, count]}'
            )
        table = policy.scores(self.trace if self.calibration is None else self.calibration)
        values = [
            native(table, value) for value in ThresholdGrid(count).candidates(table, table.scores[:, :-1].flatten())
        ]
        return [
            Setting(_with(setting.config, key, value), {**setting.along, key: value}, setting.apart) for value in values
        ]

    def _fitted(self, config: dict[str, Any]) -> ExitPolicy:
        if self.prototype is None:
            assert self.calibration is not None
            self.prototype = build(config, self.trace)
            self.prototype.calibrate(self.calibration)
        return self.prototype


def _with(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of `config` with `value` at the dotted `key`."""
    first, _, rest = key.partition(".")
    return {**config, first: _with(config[first], rest, value) if rest else value}
