"""Calibration warns, for every policy, if no sample exits early."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.tasks.task import Task
from tests.exits.random_traces import random_trace

IMPOSSIBLE: list[dict[str, Any]] = [
    {"type": "max_probability", "thresholds": 1.5},
    {"type": "margin", "thresholds": [1.5, 2.0, "never"]},
    {"type": "entropy", "thresholds": -1.0},
    {"type": "beem", "weights": "cost", "thresholds": 1e9},
    {"type": "voting", "thresholds": 1e9},
    {"type": "cascaded_ensemble", "thresholds": 1.5},
    {"type": "similarity", "thresholds": 1.5},
    {"type": "predicted_error", "thresholds": -1.0},
    {"type": "calibrated", "policy": {"type": "max_probability", "thresholds": 1.5}},
    {"type": "decaying_threshold", "policy": {"type": "margin", "thresholds": 1e9}, "max_length": 12},
    {"type": "patience", "patience": 9},
    {"type": "confident_patience", "patience": 9, "entropy_threshold": 0.3},
]


def calibrate(config: dict[str, Any]) -> Any:
    trace = random_trace(random.Random(3), num_exits=4, num_labels=3)
    assert len(trace) > 1
    return ExitPolicy.from_params(Params(config)).calibrate(trace)


@pytest.mark.parametrize("config", IMPOSSIBLE, ids=lambda config: config["type"])
def test_impossible_thresholds_are_warned_about(config: dict[str, Any]) -> None:
    report = calibrate(config)
    warned = [text for text in report.warnings if text.startswith("no calibration sample exits before the last exit")]
    assert len(warned) == 1 and "full depth plus the cost of the exits" in warned[0]
    assert report.early_share == report.to_json()["early_share"] == 0.0


def test_the_warning_names_the_thresholds() -> None:
    assert "no sample passes any of the thresholds 1.5, 2, never" in " ".join(calibrate(IMPOSSIBLE[1]).warnings)
    never = calibrate({"type": "margin", "thresholds": "never"})
    assert "every threshold is 'never'" in " ".join(never.warnings)
    assert '{"type": "patience", "patience": 9}' in " ".join(calibrate({"type": "patience", "patience": 9}).warnings)


def test_full_depth_on_purpose_is_no_mistake() -> None:
    report = calibrate({"type": "final"})
    assert not any("no calibration sample" in text for text in report.warnings) and report.early_share == 0.0
    some = calibrate({"type": "fixed_exit", "exit": 2})
    assert some.early_share == 1.0 and not any("no calibration sample" in text for text in some.warnings)


def test_thresholds_that_are_missing_are_named_before_a_training() -> None:
    for block in ({"type": "margin"}, {"type": "calibrated", "policy": {"type": "margin"}}):
        model = SimpleNamespace(exit_policy=ExitPolicy.from_params(Params(block)))
        with pytest.raises(ConfigurationError, match="margin.thresholds: found nothing, allowed: a number"):
            Task.from_params({"type": "classification"}).check_model(model)
