"""Fitting `expected_gain`; that it decides as its formula says is with the other rules, against the reference."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch

from beem_plugin.calibration.curves import curve_of
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, NotCalibratedError
from beem_plugin.common.registry import Params
from beem_plugin.exits.fitting import fit_temperature
from beem_plugin.exits.policies import ExitPolicy
from beem_plugin.exits.policies.expert_model import fit_change, fit_vote, gains, target_of


def build(**config) -> ExitPolicy:
    return ExitPolicy.from_params(Params(copy.deepcopy({"type": "expected_gain", "thresholds": 0.01, **config})))


def calibrated(trace: ExitTrace, **config) -> ExitPolicy:
    policy = build(**config)
    policy.calibrate(trace)
    return policy


def layered_trace(samples: int, seed: int, num_labels: int = 2, num_exits: int = 6) -> ExitTrace:
    """
    Two useless exits that are sure of themselves (a biased and a random one), then exits each of which hears one more
    piece of evidence, so that votes help and confidences at different exits mean different things.
    """
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, num_labels, (samples,), generator=generator)
    logits = torch.randn(samples, num_exits, num_labels, generator=generator)
    logits[:, 0, 0] += 3
    logits[:, 1] *= 4
    for column in range(2, num_exits):
        logits[torch.arange(samples), column, truth] += 0.9 + 0.3 * column
    return ExitTrace(logits, truth)


@pytest.mark.parametrize("num_labels", [2, 4])
def test_beats_confidence_where_confidences_lie(num_labels):
    calibration, validation = layered_trace(300, 0, num_labels), layered_trace(2000, 1, num_labels)
    curve = curve_of(calibrated(calibration), validation)
    confidence = ExitPolicy.from_params(Params({"type": "max_probability", "thresholds": 0.9}))
    assert curve.area(1.0, 2.0) > curve_of(confidence, validation).area(1.0, 2.0) + 5


def test_fitting_twice_gives_the_same_numbers():
    trace = layered_trace(100, 2)
    assert calibrated(trace).to_config() == calibrated(trace).to_config()


def test_the_config_written_to_json_decides_the_same_without_calibration():
    trace = layered_trace(100, 3)
    policy = calibrated(trace, thresholds={"type": "budget", "speedup": 1.5})
    config = json.loads(json.dumps(policy.to_config()))
    again = ExitPolicy.from_params(Params(copy.deepcopy(config)))
    first, second = replay(policy, trace), replay(again, trace)
    assert again.to_config() == config
    assert torch.equal(first.exits, second.exits)
    assert torch.equal(first.log_probabilities, second.log_probabilities)


def test_a_refitted_policy_forgets_the_tensors_of_the_first_fit():
    policy = calibrated(layered_trace(100, 4))
    replay(policy, layered_trace(50, 5))
    policy.calibrate(layered_trace(100, 6))
    again = ExitPolicy.from_params(Params(copy.deepcopy(policy.to_config())))
    trace = layered_trace(50, 5)
    assert torch.equal(replay(policy, trace).log_probabilities, replay(again, trace).log_probabilities)


def test_useless_exits_have_no_weight_and_no_sample_exits_at_the_last_of_them():
    policy = calibrated(layered_trace(400, 7), thresholds=0.02)
    model = policy.to_config()["model"]
    assert model["memory"][2] < 0.2 and model["trust"][1] < 0.1
    exits = replay(policy, layered_trace(400, 8)).exits
    assert int((exits <= 2).sum()) < 20 < int((exits <= 4).sum())


def test_a_threshold_is_accuracy_a_layer():
    gain = gains(np.array([0.6, 0.7, 0.8, 0.8]), np.array([0.3, 0.2, 0.0]), [1, 2, 3, 6], samples=10**9)
    assert gain == pytest.approx([0.1 / 0.3, 0.1 / 0.2, 1 / 3], abs=1e-6)
    # The best offer may be further away, and layers count, not exits.
    gain = gains(np.array([0.6, 0.5, 0.9]), np.array([0.3, 0.4]), [2, 4, 5], samples=10**9)
    assert gain == pytest.approx([0.1 / 0.3, 0.4 / 0.4], abs=1e-6)


def test_scores_are_non_negative_and_at_most_the_gain():
    trace = layered_trace(200, 9)
    policy = calibrated(trace)
    scores = -policy.score_table(trace).scores[:, :-1]
    assert (scores >= 0).all()
    assert (scores <= torch.tensor(policy.model.gain, dtype=scores.dtype)).all()


def test_the_vote_is_the_optimum_of_its_loss():
    generator = np.random.default_rng(0)
    inputs = 3 * np.log(generator.dirichlet([1.0, 1.0, 1.0], size=(80, 2)))
    target = 0.5 * generator.dirichlet([1.0, 1.0, 1.0], size=80) + 0.5 * np.eye(3)[inputs[:, 1].argmax(1)]

    def loss(parameters):
        logits = np.einsum("k,nkc->nc", parameters[:2], inputs) + parameters[2:]
        logits = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        centred = inputs - inputs.mean(2, keepdims=True)
        spread = np.square(centred - centred.mean(0)).sum(2).mean(0)
        penalty = (2.0 * spread * parameters[:2] ** 2).sum() + 0.1 * (parameters[2:] ** 2).sum()
        return -(target * logits).sum() + penalty / 2

    found = np.concatenate(fit_vote(inputs, target, ridge=2.0))
    steps = 1e-4 * np.eye(5)
    slopes = np.array([(loss(found + step) - loss(found - step)) / 2e-4 for step in steps])
    free = np.append(found[:2] > 0, [True] * 3)
    assert free[1] and np.abs(slopes[free]).max() < 1e-2 and (slopes[~free] > 0).all()


def test_changes_are_an_ordinary_ridge_regression():
    from sklearn.linear_model import LogisticRegression

    generator = np.random.default_rng(1)
    evidence = generator.normal(size=(200, 3)) * [1, 5, 0.2] + [0, 3, -1]
    given = generator.integers(0, 2, 200)
    changes = generator.random(200) < 1 / (1 + np.exp(evidence[:, 0] - given))
    weights, offsets = fit_change(evidence, given, changes, 2, ridge=1.0)
    standard = np.c_[(evidence - evidence.mean(0)) / evidence.std(0), np.eye(2)[given]]
    expected = LogisticRegression(C=1.0, tol=1e-9, max_iter=1000).fit(standard, changes)
    scores = evidence @ weights + offsets[given]
    # Its intercept is free, ours nearly so.
    assert scores == pytest.approx(expected.decision_function(standard), abs=2e-3)


def awkward(kind: str) -> ExitTrace:
    trace = layered_trace(12, 10)
    if kind == "one class":
        return ExitTrace(trace.logits.abs() * torch.tensor([1.0, -1.0]), torch.zeros(12, dtype=torch.int64))
    if kind == "saturated":
        return ExitTrace(1e4 * trace.logits.sign(), trace.labels)
    if kind == "constant":
        return ExitTrace(torch.ones_like(trace.logits), trace.labels)
    if kind == "one sample":
        return trace.select([0])
    if kind == "no labels":
        return ExitTrace(trace.logits, torch.full((12,), -1))
    if kind == "one exit":
        return ExitTrace(trace.logits[:, :1], trace.labels)
    if kind == "many labels":
        return layered_trace(12, 11, num_labels=150)
    return trace


@pytest.mark.parametrize(
    "kind",
    ["few", "one class", "saturated", "constant", "one sample", "no labels", "one exit", "many labels"],
)
def test_awkward_calibration_data_give_finite_numbers(kind):
    trace = awkward(kind)
    policy = calibrated(trace, thresholds=0.01)
    for values in policy.to_config()["model"].values():
        assert all(math.isfinite(value) for value in np.ravel(np.array(values, dtype=np.float64)).tolist())
    decisions = replay(policy, trace)
    assert torch.isfinite(decisions.log_probabilities).all()
    assert torch.allclose(decisions.log_probabilities.exp().sum(-1), torch.ones(len(trace), dtype=torch.float64))


def test_exits_that_always_agree_with_the_last_one_let_everyone_leave_at_once():
    trace = layered_trace(60, 12)
    same = ExitTrace(trace.logits[:, -1:].repeat(1, 4, 1), trace.labels)
    assert replay(calibrated(same, thresholds=0.01), same).exits.tolist() == [1] * 60


def test_without_a_model_or_without_samples_it_says_so():
    policy = build()
    with pytest.raises(NotCalibratedError):
        replay(policy, layered_trace(5, 13))
    with pytest.raises(ConfigurationError, match="found no calibration sample"):
        policy.calibrate(layered_trace(5, 13).select([]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.pop("gain"), "model.gain: missing"),
        (lambda model: model["gain"].pop(), r"model.gain: found numbers of shape \(4,\), allowed: \(5,\)"),
        (lambda model: model["bias"][1].pop(), "model.bias: found no rectangle"),
        (lambda model: model["trust"].__setitem__(0, math.nan), "model.trust: found a number that is not finite"),
    ],
)
def test_a_damaged_model_is_refused(change, message):
    config = calibrated(layered_trace(50, 14)).to_config()
    change(config["model"])
    with pytest.raises(ConfigurationError, match=message) as caught:
        replay(ExitPolicy.from_params(Params(config)), layered_trace(5, 15))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [("ridge", 0.0), ("ridge", math.inf), ("label_share", 1.5)])
def test_a_wrong_parameter_is_refused(key, value):
    with pytest.raises(ConfigurationError, match=f"{key}: found"):
        build(**{key: value})


def test_layers_between_exits_count():
    trace = layered_trace(300, 16)
    sparse = ExitTrace(trace.logits, trace.labels, meta={"exit_layers": [2, 4, 6, 8, 10, 12]})
    near, far = calibrated(trace).model, calibrated(sparse).model
    assert far.gain == pytest.approx([value / 2 for value in near.gain])
    assert far.trust == near.trust


def test_the_gain_is_accuracy_a_layer_over_the_share_of_changes():
    found = gains(np.array([0.5, 0.7, 0.8]), np.array([0.4, 0.2]), [1.0, 3.0, 6.0], 10)
    # From exit 1: 0.2 in 2 layers are more than 0.3 in 5; half a sample more changes and is right 5 layers later.
    first = (10 * 0.2 / 2 + 0.5 / 5) / (10 * 0.4 + 0.5)
    assert found == pytest.approx([first, (10 * 0.1 / 3 + 0.5 / 3) / (10 * 0.2 + 0.5)])
    # Later exits that are worse than this one: only the half sample is left.
    assert gains(np.array([0.8, 0.7]), np.array([0.5]), [1.0, 2.0], 10) == pytest.approx([0.5 / 5.5])


def test_the_target_is_the_calibrated_last_exit_mixed_with_known_labels():
    trace = layered_trace(40, 17, num_labels=3)
    trace.labels[:10] = -1
    temperature = fit_temperature(trace.logits[10:, -1].double().numpy(), trace.labels[10:].numpy())
    expected = (trace.logits[:, -1].double() / temperature).softmax(-1)
    expected[10:] = 0.6 * expected[10:] + 0.4 * torch.nn.functional.one_hot(trace.labels[10:], 3)
    assert target_of(trace, 0.4) == pytest.approx(expected.numpy())


def test_changes_are_fitted_to_this_exit_and_the_one_before():
    trace = layered_trace(80, 18)
    policy = calibrated(trace)
    state = policy.start(80, 6)
    votes, own = [], []
    for number in range(1, 7):
        state = policy.update(number, trace.exit_signals(number), state)
        votes.append(state["vote"])
        own.append(state["before"])
    last = votes[-1].argmax(-1)
    for i in range(5):
        label = votes[i].argmax(-1)
        # Of two labels the log-odds are the difference.
        odds = [
            expert.gather(1, label[:, None]) - expert.gather(1, 1 - label[:, None])
            for expert in (votes[i], own[i], own[max(i - 1, 0)])
        ]
        weights, offsets = fit_change(torch.cat(odds, 1).numpy(), label.numpy(), (label != last).numpy(), 2, ridge=1.0)
        assert policy.model.change[i] == pytest.approx(weights.tolist())
        assert policy.model.change_bias[i] == pytest.approx(offsets.tolist())


def test_clipped_votes_are_given_as_probabilities():
    numbers = {"memory": [0.0], "trust": [5.0], "bias": [[0.0] * 3], "change": [[0.0] * 3], "change_bias": [[0.0] * 3]}
    policy = build(model={**numbers, "gain": [0.0]})
    trace = ExitTrace(torch.tensor([[[9.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]), torch.tensor([0]))
    found = replay(policy, trace).log_probabilities.exp()
    assert found.sum() == pytest.approx(1.0, abs=1e-12) and found[0, 1] == pytest.approx(1e-4, rel=1e-3)
