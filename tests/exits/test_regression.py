"""Exit rules where an exit gives one value: every rule against a slow one, what is refused, and traces of values."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from beem_plugin.calibration.curves import metric_curve
from beem_plugin.calibration.replay import replay, replay_many
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.registry import Params
from beem_plugin.exits.policies import ExitPolicy
from tests.exits.test_policies_against_reference import CASES

ALLOWED = "final, fixed_exit, halting, patience, predicted_error, q_exit, similarity"


def values_trace(rng: random.Random, samples: int | None = None, num_exits: int | None = None) -> ExitTrace:
    """Values in steps of 1/8, so that differences hit tolerances exactly; a tenth of the labels is unknown."""
    exits = num_exits or rng.choice([1, 2, 3, 5, 12])
    count = samples or rng.choice([1, 2, 9, 16])
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    values = torch.randint(-8, 40, (count, 1, 1), generator=generator) / 8
    values = values + torch.randint(-4, 5, (count, exits, 1), generator=generator) / 8
    labels = torch.randint(-8, 40, (count,), generator=generator) / 8
    labels[torch.rand(count, generator=generator) < 0.1] = math.nan
    sixteenths = torch.randint(0, 17, (3, count, exits), generator=generator) / 16
    signals = dict(zip(("halt", "predicted_error", "similarity"), sixteenths, strict=True))
    return ExitTrace(values, labels, signals=signals)


def slow_exit(kind: str, config: dict[str, Any], values: Sequence[float], signals: dict[str, list[float]]) -> int:
    """Where one sample leaves, in the words of the methods' papers."""
    last = len(values)
    if kind == "patience":
        agreed = 0
        for number in range(2, last + 1):
            close = abs(values[number - 1] - values[number - 2]) < config["tolerance"]
            agreed = agreed + 1 if close else 0
            if agreed >= config["patience"]:
                return number
        return last
    if kind == "fixed_exit":
        return int(config["exit"])
    if kind == "final":
        return last
    left = 1.0
    for number in range(1, last):
        if kind == "halting":
            left *= 1 - signals["halt"][number - 1]
            leaves = 1 - left > config["thresholds"]
        elif kind == "predicted_error":
            leaves = signals["predicted_error"][number - 1] < config["thresholds"]
        else:
            leaves = signals["similarity"][number - 1] > config["thresholds"]
        if leaves:
            return number
    return last


def draw(rng: random.Random, kind: str, num_exits: int) -> dict[str, Any]:
    if kind == "patience":
        return {"patience": rng.randint(1, 4), "tolerance": rng.choice([0.125, 0.2, 0.25, 0.5, 1.0])}
    if kind == "fixed_exit":
        return {"exit": rng.randint(1, num_exits)}
    return {} if kind == "final" else {"thresholds": rng.choice([0.0, 0.25, 0.5, 0.6, 0.9])}


def build(kind: str, config: dict[str, Any]) -> ExitPolicy:
    return ExitPolicy.from_params(Params({"type": kind, **config}))


@pytest.mark.parametrize("kind", ["patience", "predicted_error", "halting", "similarity", "fixed_exit", "final"])
def test_replay_equals_one_sample_at_a_time(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(250):
        trace = values_trace(rng)
        config = draw(rng, kind, trace.num_exits)
        policy = build(kind, config)
        found = replay(policy, trace)
        for row in range(len(trace)):
            values = trace.logits[row, :, 0].double().tolist()
            signals = {name: value[row].double().tolist() for name, value in trace.signals.items()}
            expected = slow_exit(kind, config, values, signals)
            assert int(found.exits[row]) == expected, (config, values, signals)
            assert float(found.predictions[row]) == float(found.log_probabilities[row, 0]) == values[expected - 1]
        assert found.predictions.dtype == torch.float64
        if "thresholds" in config:
            config = {"thresholds": [config["thresholds"]] * (trace.num_exits - 1)}
        assert policy.to_config() == {"type": kind, **config}


def test_many_settings_at_once_equal_one_by_one() -> None:
    rng = random.Random(3)
    for _ in range(20):
        trace = values_trace(rng)
        configs = [("patience", {"patience": patience, "tolerance": 0.25}) for patience in (1, 2, 3)]
        configs += [("predicted_error", {"thresholds": value}) for value in (0.1, 0.5, "never")]
        policies = [build(kind, config) for kind, config in configs]
        for index, outcome in replay_many(policies, trace):
            decisions = replay(policies[index], trace)
            exits = np.bincount(decisions.exits.numpy() - 1, minlength=trace.num_exits)
            assert outcome.exit_histogram == exits.tolist()
            pairs = np.repeat(np.stack([outcome.labels, outcome.predictions]), outcome.counts, axis=1)
            known = trace.known
            gold = np.stack([trace.labels[known].double().numpy(), decisions.predictions[known].numpy()])
            assert sorted(map(tuple, pairs.T.tolist())) == sorted(map(tuple, gold.T.tolist()))


def test_a_curve_of_correlations_has_the_metric_of_each_setting() -> None:
    rng = random.Random(4)
    trace = values_trace(rng, samples=60, num_exits=5)
    trace = trace.select(trace.known)
    policy = build("predicted_error", {"thresholds": "never"})
    policy.bind(trace.exit_layers, 1)
    curve = metric_curve(policy.scores(trace), "pearson")
    assert len(curve) > 5
    for setting, value, speed in zip(curve.settings, curve.accuracy, curve.speedup, strict=True):
        decisions = replay(build("predicted_error", {"thresholds": setting}), trace)
        expected = np.corrcoef(trace.labels.double().numpy(), decisions.predictions.numpy())[0, 1]
        assert value == pytest.approx(expected, abs=1e-9)
        assert speed == pytest.approx(5 / decisions.exits.double().mean())


@pytest.mark.parametrize("kind", sorted(set(ExitPolicy.list_available()) & set(CASES) - set(ALLOWED.split(", "))))
def test_rules_on_confidence_are_refused(kind: str) -> None:
    policy = build(kind, CASES[kind](random.Random(0), 3, 2))
    with pytest.raises(ConfigurationError, match=f"found a regression.*allowed: {ALLOWED}"):
        policy.bind([1, 2, 3], 1)


def test_a_rule_inside_calibrated_confidences_is_refused() -> None:
    inner = {"type": "similarity", "thresholds": 0.5}
    with pytest.raises(ConfigurationError, match="calibrated: found a regression"):
        build("calibrated", {"policy": inner}).bind([1, 2, 3], 1)


def test_patience_asks_for_a_tolerance_where_it_has_a_meaning() -> None:
    with pytest.raises(ConfigurationError, match=r"patience\.tolerance: found nothing, needed for a regression"):
        build("patience", {"patience": 2}).bind([1, 2, 3], 1)
    with pytest.raises(ConfigurationError, match="tolerance: found 0.1 for 3 labels, allowed: for a regression only"):
        build("patience", {"patience": 2, "tolerance": 0.1}).bind([1, 2, 3], 3)
    for value in (0, -1.0, math.inf):
        with pytest.raises(ConfigurationError, match="tolerance: found"):
            build("patience", {"patience": 2, "tolerance": value})


def test_a_trace_of_values_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = values_trace(random.Random(1), samples=40, num_exits=3)
    assert bool(trace.labels.isnan().any()) and trace.is_regression and not trace.has_labels
    trace.save(tmp_path / "values.npz")
    found = ExitTrace.load(tmp_path / "values.npz")
    assert found.labels.dtype == torch.float32
    assert torch.equal(found.labels.nan_to_num(nan=99), trace.labels.nan_to_num(nan=99))
    assert torch.equal(found.logits, trace.logits) and found.num_labels == 1
    assert torch.equal(found.predictions, trace.logits[:, :, 0].double())
    assert torch.equal(found.known, ~trace.labels.isnan()) and found.metric == "pearson_spearman"
    assert torch.equal(found.select(found.known).labels, trace.labels[trace.known])


def test_class_labels_are_written_as_ever(tmp_path: Path) -> None:
    ExitTrace(torch.zeros(2, 3, 2), torch.tensor([1, -1])).save(tmp_path / "labels.npz")
    with np.load(tmp_path / "labels.npz") as arrays:
        assert arrays["labels"].dtype == np.int64 and sorted(arrays.files) == ["labels", "logits", "meta"]


def test_labels_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="labels of a regression .* must be floating, found torch.int64"):
        ExitTrace(torch.zeros(2, 3, 1), torch.tensor([1, 0]))
    with pytest.raises(DataError, match="sample 1 has an infinite label"):
        ExitTrace(torch.zeros(2, 3, 1), torch.tensor([1.0, math.inf]))
    np.savez(tmp_path / "t.npz", logits=np.zeros((2, 3, 2), np.float32), labels=np.zeros(2, np.float32))
    with pytest.raises(DataError, match="labels integer"):
        ExitTrace.load(tmp_path / "t.npz")
