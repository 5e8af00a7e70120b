"""Speeds of networks with branches: every target and every speed that is shown counts them, in layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from beem_plugin.calibration.curves import curve_of
from beem_plugin.calibration.replay import replay, replay_many
from beem_plugin.calibration.speed import depth_summary
from beem_plugin.calibration.thresholds import RiskControlled
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import DataError
from beem_plugin.comparison.operating_curve import TraceJudge
from beem_plugin.comparison.result import fixed_exits
from beem_plugin.evaluation.statistics import speedup_interval
from beem_plugin.exits.policies import ExitPolicy, Final, FixedExit

from .thresholds.tables import make_trace

LAYERS = [1, 2, 3, 4, 5, 6]
COSTS = [1.5, 3.0, 4.25, 5.5, 7.0, 8.0]  # branches of 0.5, 0.5, 0.25, 0.25 and 0.5 layers, none at the last exit
FULL = 6.0


def branched(samples: int = 400, seed: int = 0, costs: list[float] | None = COSTS) -> ExitTrace:
    trace = make_trace(samples, seed=seed)
    meta = {**trace.meta, "exit_layers": LAYERS} | ({} if costs is None else {"exit_costs": costs})
    return ExitTrace(trace.logits, trace.labels, meta=meta)


def speedup(exits: torch.Tensor) -> float:
    return FULL * len(exits) / sum(COSTS[number - 1] for number in exits.tolist())


def test_by_hand() -> None:
    found = depth_summary(torch.tensor([1, 3]), [1, 2, 3], [1.5, 3.0, 4.0])
    # Full depth has no early branch: 3 layers; the two samples cost 1.5 and 4.
    assert found["layer_speedup"] == pytest.approx(6 / 5.5)
    assert found["layers_saved"] == pytest.approx(1 - 5.5 / 6)
    assert found["average_layer"] == 2.0 and found["average_exit"] == 2.0
    # The last exit's own branch belongs to full depth.
    assert depth_summary(torch.tensor([2]), [1, 2], [1.5, 3.0])["layer_speedup"] == pytest.approx(2.5 / 3)
    assert speedup_interval([0, 9], [1, 2], [1.5, 3.0]) == pytest.approx((2.5 / 3, 2.5 / 3))


@pytest.mark.parametrize("policy", ["max_probability", "beem", "expected_gain"])
def test_curves_and_replay_show_the_cost_of_branches(policy: str) -> None:
    trace = branched()
    rule = ExitPolicy.from_params({"type": policy, "thresholds": {"type": "budget", "speedup": 1.5}})
    report = rule.calibrate(trace)
    assert report.layer_speedup == pytest.approx(speedup(replay(rule, trace).exits))
    assert report.details["calibration_speedup"] == pytest.approx(report.layer_speedup)
    assert 1.5 - 1e-9 <= report.layer_speedup < 1.6
    curve = curve_of(rule, trace)
    assert curve.settings[0] == "never" and curve.speedup[0] == pytest.approx(FULL / COSTS[-1])
    middle = len(curve) // 2
    setting = {**rule.to_config(), "thresholds": curve.settings[middle]}
    assert curve.speedup[middle] == pytest.approx(speedup(replay(ExitPolicy.from_params(setting), trace).exits))
    result = TraceJudge(trace).single(rule.to_config())[0].results[0]
    low, high = result.intervals["layer_speedup"]
    assert low < result.layer_speedup < high and result.layer_speedup == pytest.approx(report.layer_speedup)


@pytest.mark.parametrize("strategy", ["joint", "budget"])
def test_a_wanted_speed_is_reached_with_branches(strategy: str) -> None:
    trace = branched()
    settings = {"levels": [16], "shrinkage": [0.0]} if strategy == "joint" else {}
    rule = ExitPolicy.from_params({"type": "beem", "thresholds": {"type": strategy, "speedup": 1.3, **settings}})
    assert rule.calibrate(trace).layer_speedup >= 1.3 - 1e-9


def test_branches_that_are_not_run_cost_nothing() -> None:
    trace = branched()
    for policy, expected in ((Final(), 1.0), (FixedExit(2), FULL / 2.5), (FixedExit(6), 1.0)):
        exits = replay(policy, trace).exits
        assert trace.depth(exits, policy)["layer_speedup"] == pytest.approx(expected)
    own = [6.0, 5.5, 4.25, 3.25, 2.5, 1.5]
    assert fixed_exits(trace, "accuracy").speedup.tolist() == pytest.approx([FULL / cost for cost in own])
    fixed = replay_many([FixedExit(number) for number in (6, 2)], trace)
    depths = [trace.histogram_depth(found.exit_histogram, FixedExit((6, 2)[place])) for place, found in fixed]
    assert [depth["layer_speedup"] for depth in depths] == pytest.approx([1.0, FULL / 2.5])
    only_third = ExitPolicy.from_params({"type": "entropy", "thresholds": ["never", "never", 0.3, "never", "never"]})
    report = only_third.calibrate(trace)
    third = report.exit_histogram[2]
    assert report.layer_speedup == pytest.approx(FULL * 400 / (third * 3.25 + (400 - third) * 6.25))


def test_expected_gain_is_that_per_cost_of_the_layers_and_branches_ahead() -> None:
    def gain(costs: list[float] | None) -> list[float]:
        rule = ExitPolicy.from_params({"type": "expected_gain", "thresholds": 0.01})
        rule.calibrate(branched(costs=costs))
        return rule.to_config()["model"]["gain"]

    plain = gain(None)
    assert gain([2.0 * layer for layer in LAYERS]) == pytest.approx([value / 2 for value in plain])
    found = gain(COSTS)
    assert found[-1] == pytest.approx(plain[-1])  # no branch lies ahead
    assert all(with_branches < value for with_branches, value in zip(found[:-1], plain))


def test_risk_control_avoids_exits_whose_branches_cost_more_than_they_save() -> None:
    """A branch that costs as much as all layers behind it: exits in front of it are used, later ones save nothing."""
    trace = branched(1200)
    costly = [1.0, 2.0, 9.0, 10.0, 11.0, 12.0]
    strategy = RiskControlled(epsilon=0.15, per_exit=True)

    def speed(costs: list[float] | None) -> float:
        rule = ExitPolicy.from_params({"type": "max_probability", "thresholds": 0.5})
        rule.bind(LAYERS, 2)
        fit = strategy.fit(rule.score_table(branched(1200, costs=costs)))  # type: ignore[attr-defined]
        exits = rule.score_table(trace).exits(fit.thresholds)  # type: ignore[attr-defined]
        return float(depth_summary(exits, LAYERS, costly)["layer_speedup"])

    assert speed(costly) > speed(None)


def test_networks_without_branches_are_unchanged_to_the_last_digit() -> None:
    def everything(costs: list[float] | None, policy: str, thresholds: Any) -> tuple[Any, ...]:
        trace = branched(200, costs=costs)
        rule = ExitPolicy.from_params({"type": policy, "thresholds": thresholds})
        report = rule.calibrate(trace).to_json()
        return report, curve_of(rule, trace).speedup.tolist(), trace.depth(replay(rule, trace).exits)

    for policy in ("max_probability", "beem", "expected_gain"):
        for thresholds in (
            {"type": "budget", "speedup": 1.7},
            {"type": "risk_controlled", "epsilon": 0.1},
            "error_rate",
        ):
            assert everything(None, policy, thresholds) == everything(LAYERS, policy, thresholds)
    assert speedup_interval([50, 50], [3, 12]) == speedup_interval([50, 50], [3, 12], [3, 12])
    exits = torch.tensor([1, 1, 6, 3])
    assert depth_summary(exits, LAYERS)["layer_speedup"] == 6 / float(np.mean([1, 1, 6, 3]))


@pytest.mark.parametrize("costs", [[1, 2], [1, 2, 3, 4, 5, 5], [0, 1, 2, 3, 4, 5], ["1", 2, 3, 4, 5, 6]])
def test_costs_that_do_not_fit_are_refused(costs: Any) -> None:
    with pytest.raises(DataError, match="exit_costs must be 6 rising numbers above 0"):
        branched(costs=costs)
