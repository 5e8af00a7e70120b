"""Counting layers."""

from __future__ import annotations

import pytest
import torch

from beem_plugin.calibration.speed import depth_summary


def test_layer_speedup_by_hand():
    # Four samples on 12 layers: 3 + 3 + 6 + 12 = 24 layers run of 48.
    summary = depth_summary(torch.tensor([3, 3, 6, 12]), range(1, 13))
    assert summary["layer_speedup"] == pytest.approx(2.0)
    assert summary["layers_saved"] == pytest.approx(0.5)
    assert summary["average_exit"] == summary["average_layer"] == pytest.approx(6.0)
    assert summary["exit_histogram"] == [0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 1]


def test_exits_that_are_not_at_every_layer_cost_the_layers_below_them():
    summary = depth_summary(torch.tensor([1, 2, 3, 3]), [2, 4, 12])
    assert summary["average_exit"] == pytest.approx(9 / 4)
    assert summary["average_layer"] == pytest.approx(30 / 4)
    assert summary["layer_speedup"] == pytest.approx(48 / 30)


def test_full_depth_is_one_and_the_first_exit_is_the_depth():
    assert depth_summary(torch.full((5,), 12), range(1, 13))["layer_speedup"] == 1
    assert depth_summary(torch.ones(5, dtype=torch.int64), range(1, 13))["layer_speedup"] == 12


def test_no_samples_are_not_faster():
    summary = depth_summary(torch.zeros(0, dtype=torch.int64), range(1, 4))
    assert summary["layer_speedup"] == 1
    assert summary["layers_saved"] == 0
    assert summary["exit_histogram"] == [0, 0, 0]
