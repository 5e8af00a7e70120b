"""The settings of a policy on a trace. Settings that differ only along the accuracy-speed curve are one family."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beem_plugin.calibration.curves import Curve, metric_curve, native
from beem_plugin.calibration.replay import ExitDecisions, Outcome, outcome_of, replay, replay_many
from beem_plugin.calibration.thresholds import NEVER
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.params import apply_overrides
from beem_plugin.comparison.policy_files import NamedPolicy
from beem_plugin.comparison.policy_grid import Quantiles, Setting, describe
from beem_plugin.comparison.result import (
    ON_ITSELF,
    PolicyResult,
    build,
    intervals_of,
    measure,
    measure_outcome,
    right_of,
)
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.threshold_strategy import ThresholdGrid

CURVE_POINTS = 200
Fitted = tuple[Setting, ExitPolicy, CalibrationReport | None]
"""A setting without `Quantiles`, its fitted policy, and the report if it was fitted alone."""


@dataclass
class Family:
    """The results of settings that share a curve; `policy` is any of theirs, fitted."""

    name: str
    results: list[PolicyResult]
    policy: ExitPolicy
    curve: Curve | None = None

    def summary(self, metric: str) -> dict[str, Any]:
        """
        Of its curve: the `metric`, `final` of the last exit, `area` from 1x to 3x in points, and `at` 1.5x, 2x, 2.5x.
        """
        assert self.curve is not None
        found = self.curve.summary()
        final = self.results[0].final_metrics[metric]
        return {"metric": metric, "final": final, "area": found["area"], "at": found["accuracy_at"]}


@dataclass
class TraceResult:
    """
    All policies on one trace (`name` is `None` for the only one); speeds are relative to `scale` times its layers.
    """

    name: str | None
    trace: ExitTrace
    families: list[Family]
    scale: float = 1.0

    @property
    def label(self) -> dict[str, str]:
        return {} if self.name is None else {"trace": self.name}

    @property
    def results(self) -> list[PolicyResult]:
        return [result for family in self.families for result in family.results]


class TraceJudge:
    """
    Fits policies on `calibration` (their scores on `parameters`, if given); measures them on `trace`, by `metrics` too.
    """

    def __init__(
        self,
        trace: ExitTrace,
        calibration: ExitTrace | None = None,
        metrics: Sequence[str] = (),
        parameters: ExitTrace | None = None,
    ) -> None:
        self.trace = trace
        self.calibration = calibration
        self.parameters = [] if parameters is None else [parameters]
        self.metrics = metrics
        self.final_metrics = measure(trace, trace.predictions[:, -1], metrics)
        self.warnings = [ON_ITSELF] if calibration is not None and calibration.same_data(trace) else []

    def single(
        self, config: dict[str, Any], name: str = "policy", bootstrap: bool = True
    ) -> tuple[Family, ExitDecisions]:
        """One policy with `right`, its decisions, and with `bootstrap` the intervals of all metrics."""
        policy = build(config, self.trace)
        report = None if self.calibration is None else policy.calibrate(self.calibration, *self.parameters)
        decisions = replay(policy, self.trace)
        outcome = outcome_of(decisions.exits, decisions.predictions, self.trace.labels, self.trace.num_exits)
        result = self._result(name, policy, outcome, report, bootstrap=bootstrap)
        result.right = right_of(self.trace, decisions)
        return Family(name, [result], policy), decisions

    def families(self, policy: NamedPolicy) -> list[Family]:
        """All settings of a policy, measured in one pass. What the settings of a family share is fitted once."""
        groups: dict[str, list[Setting]] = {}
        for setting in policy.settings:
            groups.setdefault(describe(setting.apart), []).append(setting)
        families, fitted = [], []
        for label, settings in groups.items():
            own = self._fit(settings)
            families.append(Family(f"{policy.name} {label}" if label else policy.name, [], own[0][1]))
            fitted += [(families[-1], *one) for one in own]
        outcomes = dict(replay_many([one for _, _, one, _ in fitted], self.trace))
        for place, (family, setting, one, report) in enumerate(fitted):
            name = f"{family.name}{', ' if setting.apart and setting.along else ' '}{describe(setting.along)}".rstrip()
            family.results.append(self._result(name, one, outcomes[place], report, setting.swept))
        return families

    def curve(self, family: Family, metric: str, sweep: bool) -> Curve | None:
        """
        The curve of a family for `metric` (`accuracy`, `matthews`, ...): through its settings and full depth, or, with
        `sweep`, of every limit that makes a difference where the policy has a score. `None` without labels, or for one
        point.
        """
        known = self.trace.known.nonzero().flatten()
        if len(known) == 0:
            return None
        if sweep and family.policy.score_key() is not None and self.trace.num_exits > 1:
            labelled = self.trace if len(known) == len(self.trace) else self.trace.select(known)
            return metric_curve(family.policy.scores(labelled), metric)
        ordered = sorted(family.results, key=lambda result: result.layer_speedup)
        if ordered[0].layer_speedup == ordered[-1].layer_speedup:
            return None
        curve = Curve(
            np.array([result.metrics[metric] for result in ordered], dtype=np.float64),
            np.array([result.layer_speedup for result in ordered], dtype=np.float64),
            [result.name for result in ordered],
        )
        return curve.with_full_depth(self.final_metrics[metric])

    def _result(
        self,
        name: str,
        policy: ExitPolicy,
        outcome: Outcome,
        report: CalibrationReport | None,
        setting: dict[str, Any] | None = None,
        bootstrap: bool = False,
    ) -> PolicyResult:
        warnings = [] if report is None else list(report.warnings)
        measured = measure_outcome(self.trace, outcome, self.metrics)
        return PolicyResult(
            name=name,
            n=len(self.trace),
            num_exits=self.trace.num_exits,
            metrics=measured,
            final_metrics=dict(self.final_metrics),
            depth=self.trace.histogram_depth(outcome.exit_histogram, policy),
            policy=policy.to_config(),
            warnings=[*warnings, *self.warnings, *policy.out_of_reach(with_ends=setting is None)],
            calibration=None if report is None else report.to_json(),
            setting=setting,
            intervals=intervals_of(self.trace, policy, outcome, measured, bootstrap),
        )

    def _fit(self, settings: Sequence[Setting]) -> list[Fitted]:
        """The policies of a family."""
        found: list[Fitted] = []
        prototype: ExitPolicy | None = None
        for setting in (one for given in settings for one in self._without_quantiles(given)):
            policy, report = build(setting.config, self.trace), None
            if self.calibration is not None and not policy.shares_fit:
                report = policy.calibrate(self.calibration)
            elif self.calibration is not None:
                if prototype is None:
                    prototype = build(setting.config, self.trace)
                    prototype.calibrate(self.calibration)
                policy.adopt(prototype)
            found.append((setting, policy, report))
        return found

    def _without_quantiles(self, setting: Setting) -> list[Setting]:
        """`setting`, or one for each of the thresholds that its `Quantiles` stand for."""
        open_keys = [key for key, value in setting.along.items() if isinstance(value, Quantiles)]
        if not open_keys:
            return [setting]
        key, count = open_keys[0], setting.along[open_keys[0]].count
        policy = build(apply_overrides(copy.deepcopy(setting.config), {key: NEVER}), self.trace)
        if self.calibration is not None:
            policy.calibrate(self.calibration)
        policy.check_calibrated()
        if policy.score_key() is None:
            raise ConfigurationError(
                f"{key}.quantiles: found {policy.registered_name}, which has no scores apart from its thresholds; "
                'allowed: {"grid": [..]} or {"linspace": [from, to, count]}'
            )
        table = policy.scores(self.trace if self.calibration is None else self.calibration)
        candidates = ThresholdGrid(count).candidates(table, table.scores[:, :-1].flatten())
        swept = [{key: native(table, value)} for value in candidates]
        return [
            Setting(apply_overrides(copy.deepcopy(setting.config), own), {**setting.along, **own}, setting.apart)
            for own in swept
        ]
