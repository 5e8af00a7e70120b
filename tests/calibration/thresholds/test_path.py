"""One threshold for all exits: the cumulative sums against stepping through every threshold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from beem_plugin.calibration.thresholds.path import ThresholdPath, cut

from .tables import make_table, random_table


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_every_point_equals_the_decisions_under_its_threshold(seed: int, strict: bool) -> None:
    table = random_table(seed, strict=strict)
    path = ThresholdPath(table)
    per_exit = np.random.default_rng(seed).normal(size=(len(table), table.num_exits))
    sums = path.sums(per_exit)
    rows = np.arange(len(table))
    seen = set()
    for point in range(len(path)):
        exits = table.exits([path.threshold(point)] * (table.num_exits - 1)).numpy() - 1
        assert sums[point] == pytest.approx(per_exit[rows, exits].sum(), abs=1e-9)
        seen.add(tuple(exits))
    distinct = np.unique(table.scores[:, :-1].numpy())
    by_hand = {
        tuple(table.exits([threshold] * (table.num_exits - 1)).numpy() - 1)
        for threshold in [math.inf, *(distinct - 1e-6), *(distinct + 1e-6)]
        if threshold > -math.inf
    }
    assert seen == by_hand, "no decision that one threshold can take is missed, and none is made up"


@pytest.mark.parametrize("seed", range(6))
def test_changes_are_the_single_losses(seed: int) -> None:
    table = random_table(seed)
    path = ThresholdPath(table)
    losses = table.wrong.double().numpy()
    found = {point: array.copy() for point, array in path.changes(losses)}
    current = None
    for point in range(len(path)):
        exits = table.exits([path.threshold(point)] * (table.num_exits - 1)).numpy() - 1
        expected = losses[np.arange(len(table)), exits]
        current = found.get(point, current)
        assert np.array_equal(current, expected)


def test_running_maximum_never_falls_and_is_the_smallest_such() -> None:
    table = random_table(5)
    path = ThresholdPath(table)
    losses = table.wrong.double().numpy()
    raised = path.running_maximum(losses)
    rows = np.arange(len(table))
    highest = losses[:, -1]
    for point in range(len(path)):
        exits = table.exits([path.threshold(point)] * (table.num_exits - 1)).numpy() - 1
        highest = np.maximum(highest, losses[rows, exits])
        assert np.array_equal(raised[rows, exits], highest)


@pytest.mark.parametrize("strict", [False, True])
def test_point_of_any_threshold(strict: bool) -> None:
    table = random_table(1, strict=strict)
    path = ThresholdPath(table)
    layers = np.broadcast_to(np.array(table.exit_layers), (len(table), table.num_exits))
    sums = path.sums(layers)
    for threshold in [math.inf, 1.25, 1.0, 0.99, 0.5, 0.1, 0.0, -3.0]:
        exits = table.exits([threshold] * (table.num_exits - 1)).numpy() - 1
        assert sums[path.point_of(np.array([threshold]))[0]] == layers[0][exits].sum()


def test_cut_between_neighbouring_floats() -> None:
    upper = 0.7
    lower = math.nextafter(upper, 0)
    assert lower < cut(upper, lower, strict=False) <= upper
    assert lower <= cut(upper, lower, strict=True) < upper
    assert cut(upper, None, strict=False) < upper
    assert 0.2 < cut(0.4, 0.2, strict=False) < 0.4


def test_a_network_with_one_exit_has_one_decision() -> None:
    assert len(ThresholdPath(make_table(10, num_exits=1))) == 1
