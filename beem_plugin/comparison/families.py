"""The settings of a policy on a trace, by families: each family is one curve."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from beem_plugin.calibration.curves import Curve, metric_curve, native
from beem_plugin.calibration.replay_many import replay_many
from beem_plugin.calibration.report import CalibrationReport
from beem_plugin.calibration.speed import trace_histogram_depth
from beem_plugin.calibration.thresholds import NEVER
from beem_plugin.calibration.thresholds.grid import ThresholdGrid
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.comparison.measuring import ON_ITSELF, describe_result, measure, measure_outcome
from beem_plugin.comparison.policy_files import Variant
from beem_plugin.comparison.policy_grid import Quantiles, Setting, describe
from beem_plugin.exits.policy import ExitPolicy

CURVE_POINTS = 200


@dataclass
class Family:
    """
    Settings that differ only in what moves the rule along its curve.

    # Parameters

    name : `str`
    settings : `list[Setting]`
        Without `Quantiles`.
    policies : `list[ExitPolicy]`
        Fitted, one a setting.
    reports : `list[CalibrationReport | None]`
        What calibration said, where a setting was calibrated by itself.
    """

    name: str
    settings: list[Setting]
    policies: list[ExitPolicy]
    reports: list[CalibrationReport | None]


@dataclass
class JudgedFamily:
    """
    # Parameters

    name : `str`
    results : `list[dict[str, Any]]`
        As `describe_result` gives them, each with its `name`, and those of a sweep with their `setting`.
    curve : `Curve`, optional (default = `None`)
    """

    name: str
    results: list[dict[str, Any]]
    curve: Curve | None = None


@dataclass
class JudgedTrace:
    """
    # Parameters

    name : `str | None`
        `None` if it is the only one.
    trace : `ExitTrace`
    families : `list[JudgedFamily]`
    """

    name: str | None
    trace: ExitTrace
    families: list[JudgedFamily]


def fit_families(variant: Variant, trace: ExitTrace, calibration: ExitTrace | None) -> list[Family]:
    """Builds the settings of `variant`; what they need of `calibration` is fitted once a family where that serves."""
    groups: dict[str, list[Setting]] = {}
    for setting in variant.settings:
        groups.setdefault(describe(setting.apart), []).append(setting)
    families = []
    for label, settings in groups.items():
        fitting = _Fitting(trace, calibration)
        resolved = [one for setting in settings for one in fitting.without_quantiles(setting)]
        fitted = [fitting.fit(setting) for setting in resolved]
        name = f"{variant.name} {label}" if label else variant.name
        families.append(Family(name, resolved, [policy for policy, _ in fitted], [report for _, report in fitted]))
    return families


def judge_families(
    families: Sequence[Family], trace: ExitTrace, calibration: ExitTrace | None, metrics: Sequence[str] = ()
) -> list[JudgedFamily]:
    """What every setting of every family does on `trace`, in one go."""
    places = [(number, index) for number, family in enumerate(families) for index in range(len(family.settings))]
    policies = [families[number].policies[index] for number, index in places]
    final = measure(trace, trace.predictions[:, -1], metrics)
    itself = [ON_ITSELF] if calibration is not None and calibration.same_data(trace) else []
    judged = [JudgedFamily(family.name, [{} for _ in family.settings]) for family in families]
    for place, outcome in replay_many(policies, trace):
        number, index = places[place]
        family = families[number]
        setting, report = family.settings[index], family.reports[index]
        result = describe_result(
            trace,
            policies[place],
            metrics=measure_outcome(trace, outcome, metrics),
            final_metrics=dict(final),
            depth=trace_histogram_depth(trace, outcome.exit_histogram),
            warnings=[*(report.warnings if report else []), *itself, *policies[place].out_of_reach(with_ends=False)],
            report=report,
        )
        name = f"{family.name}{', ' if setting.apart and setting.along else ' '}{describe(setting.along)}".rstrip()
        judged[number].results[index] = {"name": name, "setting": setting.swept, **result}
    return judged


def family_curve(
    policy: ExitPolicy, results: Sequence[dict[str, Any]], trace: ExitTrace, metric: str, sweep: bool
) -> Curve | None:
    """
    The curve of a family: through its settings and full depth, or, with `sweep`, of every limit that makes a difference
    where the rule has a score. `None` without labels, or if there is nothing to draw.

    # Parameters

    policy : `ExitPolicy`
        Any of the family's, fitted.
    results : `Sequence[dict[str, Any]]`
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
    if len({result["layer_speedup"] for result in results}) < 2:
        return None
    ordered = sorted(results, key=lambda result: result["layer_speedup"])
    curve = Curve(
        torch.tensor([result["metrics"][metric] for result in ordered], dtype=torch.float64).numpy(),
        torch.tensor([result["layer_speedup"] for result in ordered], dtype=torch.float64).numpy(),
        [result["name"] for result in ordered],
    )
    return curve.with_full_depth(ordered[0]["final_metrics"][metric])


def build(config: dict[str, Any], trace: ExitTrace) -> ExitPolicy:
    """The policy of `config`, bound to the network of `trace`."""
    policy = ExitPolicy.from_params(Params(copy.deepcopy(config)))
    policy.bind(trace.exit_layers, trace.num_labels)
    return policy


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
