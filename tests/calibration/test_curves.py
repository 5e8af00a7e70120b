"""Accuracy-speed curves against replay, and areas that can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from beem_plugin.calibration.curves import Curve, curve_of, joined, metric_curve, threshold_curve, vector_curve
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.speed import depth_summary
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.metrics import compute_metrics
from beem_plugin.comparison.result import fixed_exits
from beem_plugin.exits.policies import ExitPolicy

from .thresholds.tables import make_table, make_trace


@pytest.mark.parametrize("policy", ["max_probability", "entropy", "margin", "beem"])
def test_every_point_is_what_replay_gives(policy: str) -> None:
    trace = make_trace(150)
    rule = ExitPolicy.from_params({"type": policy, "thresholds": 0.7})
    if policy == "beem":
        rule.calibrate(trace)
    curve = curve_of(rule, trace)
    assert curve.settings[0] == "never" and curve.speedup[0] == 1.0
    assert bool((np.diff(curve.speedup) >= 0).all())
    config = rule.to_config()
    for index in range(0, len(curve), max(1, len(curve) // 25)):
        decisions = replay(ExitPolicy.from_params({**config, "thresholds": curve.settings[index]}), trace)
        assert curve.accuracy[index] == pytest.approx(float((decisions.predictions == trace.labels).double().mean()))
        assert curve.speedup[index] == pytest.approx(depth_summary(decisions.exits, trace.exit_layers)["layer_speedup"])


def test_given_thresholds_and_vectors_agree_with_each_other() -> None:
    trace = make_trace(200)
    rule = ExitPolicy.from_params({"type": "entropy", "thresholds": 0.3})
    given = [0.1, "never", 0.5, 0.3]
    curve = curve_of(rule, trace, given)
    assert curve.settings == ["never", 0.1, 0.3, 0.5]
    table = rule.score_table(trace)  # type: ignore[attr-defined]
    vectors = vector_curve(table, [[np.inf] * 5, [-0.1] * 5, [-0.3] * 5, [-0.5] * 5])
    assert np.allclose(vectors.accuracy, curve.accuracy) and np.allclose(vectors.speedup, curve.speedup)
    assert vectors.settings[1] == [0.1] * 5


def test_area_and_interpolation_by_hand() -> None:
    curve = Curve(np.array([0.9, 0.8, 0.6]), np.array([1.0, 2.0, 4.0]), ["a", "b", "c"])
    # 1.5x runs 2/3 of the layers: a third of the samples at 1x, two thirds at 2x.
    assert curve.at(1.5) == pytest.approx(0.9 / 3 + 0.8 * 2 / 3)
    # 3x runs 1/3: a third of the samples at 2x, two thirds at 4x.
    assert curve.at(3.0) == pytest.approx(0.8 / 3 + 0.6 * 2 / 3)
    assert curve.at(4.5) is None
    # a + b/s is 0.7 + 0.2/s up to 2x, and 0.4 + 0.8/s from there on.
    assert curve.area() == pytest.approx(100 * (0.7 + 0.2 * math.log(2) + 0.4 + 0.8 * math.log(1.5)) / 2)
    assert curve.area(1, 5) is None
    assert curve.summary()["accuracy_at"] == {
        "1.5": pytest.approx(0.9 / 3 + 0.8 * 2 / 3),
        "2.0": pytest.approx(0.8),
        "2.5": pytest.approx(0.8 * 0.6 + 0.6 * 0.4),
    }


def test_settings_of_equal_speed_count_with_their_mean() -> None:
    curve = Curve(np.array([0.9, 0.7, 0.5]), np.array([1.0, 1.0, 3.0]), ["a", "b", "c"])
    assert curve.at(1.0) == pytest.approx(0.8)
    assert curve.area() == pytest.approx(100 * (0.35 * 2 + 0.45 * math.log(3)) / 2)


def test_what_the_curve_promises_can_be_had_by_drawing_a_setting_for_each_sample() -> None:
    trace = make_trace(400)
    slow, fast = (ExitPolicy.from_params({"type": "fixed_exit", "exit": number}) for number in (6, 2))
    curve = fixed_exits(trace, "accuracy")
    curve = curve.take([curve.settings.index(number) for number in (6, 2)])
    decisions = [replay(policy, trace) for policy in (slow, fast)]
    takes_fast = torch.rand(20000, 400, generator=torch.Generator().manual_seed(0)) < 0.4
    right = [(found.predictions == trace.labels).double() for found in decisions]
    accuracy = torch.where(takes_fast, right[1], right[0]).mean()
    depth = torch.where(takes_fast, decisions[1].exits, decisions[0].exits).double().mean()
    assert curve.at(6 / float(depth)) == pytest.approx(float(accuracy), abs=1e-3)


def test_area_is_that_under_the_line_as_it_is_drawn() -> None:
    curve = threshold_curve(make_table(300))
    speed, accuracy = curve.line(20000)
    inside = (speed >= 1) & (speed <= 3)
    s, a = speed[inside], accuracy[inside]
    assert curve.area() == pytest.approx(100 * float(((a[1:] + a[:-1]) / 2 * np.diff(s)).sum()) / 2, abs=1e-2)


def test_full_depth_is_the_slow_end_of_every_rule() -> None:
    curve = Curve(np.array([0.8]), np.array([4.0]), ["a"])
    assert curve.area() is None
    ended = curve.with_full_depth(0.9)
    assert ended.at(1.0) == pytest.approx(0.9) and ended.at(2.0) == pytest.approx(0.9 / 3 + 0.8 * 2 / 3)
    assert ended.with_full_depth(0.1) is ended


def test_curves_of_other_metrics() -> None:
    trace = make_trace(300)
    rule = ExitPolicy.from_params({"type": "max_probability", "thresholds": 0.5})
    rule.bind(trace.exit_layers, trace.num_labels)
    curve = metric_curve(rule.score_table(trace), "matthews", points=20)  # type: ignore[attr-defined]
    assert len(curve) <= 22
    for index in range(len(curve)):
        decisions = replay(
            ExitPolicy.from_params({"type": "max_probability", "thresholds": curve.settings[index]}), trace
        )
        found = compute_metrics("matthews", trace.labels.numpy(), decisions.predictions.numpy())["matthews"]
        assert curve.accuracy[index] == pytest.approx(found, abs=1e-12)
        assert curve.speedup[index] == pytest.approx(depth_summary(decisions.exits, trace.exit_layers)["layer_speedup"])
    patience = ExitPolicy.from_params({"type": "patience", "patience": 1})
    patience.bind(trace.exit_layers, trace.num_labels)
    assert metric_curve(patience.scores(trace), "accuracy").settings == ["never", 4.0, 3.0, 2.0, 1.0]


def test_policies_without_thresholds() -> None:
    trace = make_trace(100)
    patience = ExitPolicy.from_params({"type": "patience", "patience": 1})
    with pytest.raises(ConfigurationError, match="no score"):
        curve_of(patience, trace)
    wrapped = ExitPolicy.from_params({"type": "calibrated", "policy": {"type": "patience", "patience": 2}})
    with pytest.raises(ConfigurationError, match="no score"):
        curve_of(wrapped, trace)


def test_a_calibrated_policy_has_a_curve() -> None:
    trace = make_trace(100)
    wrapped = ExitPolicy.from_params({"type": "calibrated", "policy": {"type": "max_probability", "thresholds": 0.8}})
    wrapped.calibrate(trace)
    curve = curve_of(wrapped, trace, [0.8])
    assert curve.speedup[0] == pytest.approx(
        depth_summary(replay(wrapped, trace).exits, trace.exit_layers)["layer_speedup"]
    )


def test_a_thousand_settings_of_many_samples_need_no_loop_over_settings() -> None:
    table = make_table(5000, num_exits=12)
    curve = threshold_curve(table, np.linspace(0.5, 1, 1000).tolist())
    assert len(curve) == 1000
    assert len(threshold_curve(table).thinned(50)) <= 52
    # The layers run fall by a hundredth of full depth a setting: ten settings in even steps, ends included.
    depths = np.linspace(1, 0.1, 91)
    some = Curve(depths, 1 / depths, list(range(91))).thinned(10)
    assert 1 / some.speedup == pytest.approx(np.linspace(1, 0.1, 10), abs=0.0101)


def test_curves_of_seeds_are_joined_where_all_of_them_reach() -> None:
    slow = Curve(np.array([0.9, 0.7]), np.array([1.0, 2.0]), [None, None])
    fast = Curve(np.array([0.8, 0.6]), np.array([1.25, 4.0]), [None, None])
    found = joined([slow, fast], np.mean, points=4)
    assert found is not None
    # Layers run, over all layers: from 0.8 to 0.5 in even steps, in which both curves are straight.
    depths = np.array([0.8, 0.7, 0.6, 0.5])
    assert 1 / found.speedup == pytest.approx(depths)
    of_slow, of_fast = 0.7 + 0.2 * (depths - 0.5) / 0.5, 0.6 + 0.2 * (depths - 0.25) / 0.55
    assert found.accuracy == pytest.approx((of_slow + of_fast) / 2)
    beyond = Curve(np.array([0.8, 0.6]), np.array([2.0, 4.0]), [None, None])
    for others in ([beyond], [None], [slow.take([0])]):
        assert joined([slow, *others], np.mean) is None
    assert joined([], np.mean) is None
