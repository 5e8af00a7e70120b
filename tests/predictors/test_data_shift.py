"""Inputs of another kind than the calibration data are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.exits.policies import FixedExit
from beem_plugin.predictors.data_shift import BINS, ShiftCheck
from tests.tiny_project import run, sentences


def check_of(confidences: np.ndarray) -> ShiftCheck:
    probabilities = torch.from_numpy(np.stack([confidences, 1 - confidences], 1)).unsqueeze(1).repeat(1, 2, 1)
    policy = FixedExit(1)
    policy.bind([1, 2], 2)
    return ShiftCheck(policy, ExitTrace(probabilities.log(), torch.zeros(len(confidences), dtype=torch.int64)))


@pytest.mark.parametrize("scale", [0.1, 0.05])
def test_distance_and_p_value_are_those_of_the_test(scale: float) -> None:
    random = np.random.default_rng(0)
    expected, found = 0.9 - random.uniform(0, 0.1, 300), 0.9 - random.uniform(0, scale, 500)
    check = check_of(expected)
    for part in np.array_split(found, 7):
        check.add([{"probabilities": [float(value), 1 - float(value)], "exit": 1} for value in part])
    distance, p_value = check.statistic()
    exact = ks_2samp(found, expected, method="asymp")
    assert distance == pytest.approx(exact.statistic, abs=10 / BINS)
    assert (p_value < 1e-3) == (exact.pvalue < 1e-3) == (scale == 0.05)
    assert bool(check.warning()) == (scale == 0.05)


def test_nothing_is_said_of_few_inputs_or_values() -> None:
    check = check_of(np.full(300, 0.9))
    assert not check.warning()
    check.add([{"probabilities": [0.6, 0.4]}] * 3)
    assert not check.warning()
    check.add([{"value": 1.0}])
    assert check.found.sum() == 3


def test_predict_ends_with_a_warning(tmp_path: Path, trained: Path) -> None:
    def said(*texts: str, **wrapped: Any) -> str:
        rule = {"type": "max_probability", "thresholds": 0.9}
        policy = json.dumps({"model.exit_policy": {**wrapped, "policy": rule} if wrapped else rule})
        path = tmp_path / "texts.jsonl"
        path.write_text("".join(json.dumps({"sentence": text}) + "\n" for text in texts))
        return run("predict", str(trained), str(path), "-o", policy, "--output-file", str(tmp_path / "out")).stderr

    assert "other confidences" not in said(*(text for text, _ in sentences(80, seed=7)))
    warned = said(*["the the the"] * 200)
    assert "warning: the inputs exit with other confidences than the calibration data" in warned
    learned = said(*(text for text, _ in sentences(80, seed=7)), type="online", grid=[0.6, 0.9])
    assert "online: after 80 samples the best is 0." in learned
