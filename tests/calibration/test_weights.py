"""BEEM's weights, by hand and by counting."""

from __future__ import annotations

import random

import pytest
import torch

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.exit_weights import AccuracyWeights, CostWeights, ExitWeights, FixedWeights, as_weights


def trace_of(predictions: list[list[int]], labels: list[int], num_labels: int = 2) -> ExitTrace:
    logits = torch.nn.functional.one_hot(torch.tensor(predictions), num_labels).float()
    return ExitTrace(logits, torch.tensor(labels))


def test_cost_weights_grow_with_the_layer():
    assert CostWeights().resolve(range(1, 13)) == pytest.approx([0.1 * layer for layer in range(1, 13)])
    assert CostWeights(scale=0.4, offset=-1).resolve(range(1, 4)) == pytest.approx([0, 0.4, 0.8])


def test_cost_weights_go_by_layers_not_by_the_number_of_exits():
    assert CostWeights().resolve([2, 4, 12]) == pytest.approx([0.2, 0.4, 1.2])


def test_cost_weights_do_not_look_at_the_data():
    assert CostWeights().fit(trace_of([[0, 1]], [-1])) == pytest.approx([0.1, 0.2])
    assert not CostWeights.needs_calibration


def test_accuracy_weights_by_hand():
    # Exit 1 says 0 throughout; exit 2 is right on all but one of label 0.
    trace = trace_of([[0, 1], [0, 0], [0, 0], [0, 1]], [0, 0, 0, 1])
    assert AccuracyWeights().fit(trace) == pytest.approx([3 / 4, 3 / 4])
    assert AccuracyWeights("balanced").fit(trace) == pytest.approx([1 / 2, (2 / 3 + 1) / 2])
    assert AccuracyWeights("above_chance").fit(trace) == pytest.approx([0, 2 * (2 / 3 + 1) / 2 - 1])


def test_accuracy_weights_by_counting():
    rng = random.Random("weights")
    for _ in range(100):
        samples, exits, num_labels = rng.randint(1, 30), rng.randint(1, 5), rng.choice([2, 3, 6])
        predictions = [[rng.randrange(num_labels) for _ in range(exits)] for _ in range(samples)]
        labels = [rng.randrange(num_labels) for _ in range(samples)]
        trace = trace_of(predictions, labels, num_labels)
        for i in range(exits):
            right = [k for k in range(samples) if predictions[k][i] == labels[k]]
            recalls = [sum(labels[k] == label for k in right) / labels.count(label) for label in sorted(set(labels))]
            balanced = sum(recalls) / len(recalls)
            assert AccuracyWeights().fit(trace)[i] == pytest.approx(len(right) / samples)
            assert AccuracyWeights("balanced").fit(trace)[i] == pytest.approx(balanced)
            above = max(0, (balanced - 1 / num_labels) / (1 - 1 / num_labels))
            assert AccuracyWeights("above_chance").fit(trace)[i] == pytest.approx(above)


def test_a_collapsed_exit_weighs_nothing_above_chance():
    trace = trace_of([[2]] * 6, [0, 1, 2, 0, 1, 2], num_labels=3)
    assert AccuracyWeights("balanced").fit(trace) == pytest.approx([1 / 3])
    assert AccuracyWeights("above_chance").fit(trace) == pytest.approx([0])


@pytest.mark.parametrize("labels", [[0, -1], [-1, -1]])
def test_accuracy_weights_need_labels(labels):
    with pytest.raises(ConfigurationError, match="labels for 2 samples"):
        AccuracyWeights().fit(trace_of([[0, 1], [1, 1]], labels))


def test_accuracy_weights_need_samples():
    with pytest.raises(ConfigurationError, match="for 0 samples"):
        AccuracyWeights().fit(ExitTrace(torch.zeros(0, 2, 2), torch.zeros(0, dtype=torch.int64)))


def test_fixed_weights_are_one_an_exit():
    assert FixedWeights([1, 0.5]).resolve([1, 2]) == [1.0, 0.5]
    with pytest.raises(ConfigurationError, match="weights: found a list of 2, allowed: 3"):
        FixedWeights([1, 0.5]).resolve([1, 2, 3])


def test_an_unknown_variant_is_refused():
    with pytest.raises(ConfigurationError, match="weights.variant: found 'ballanced', allowed: balanced"):
        AccuracyWeights("ballanced")


def test_what_a_config_may_say():
    assert isinstance(as_weights(None), AccuracyWeights)
    assert isinstance(as_weights("cost"), CostWeights)
    assert isinstance(as_weights([1.0]), FixedWeights)
    given = CostWeights(0.3)
    assert as_weights(given) is given
    assert set(ExitWeights.list_available()) >= {"cost", "accuracy", "fixed"}
