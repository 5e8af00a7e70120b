"""Every registered rule against an independent implementation that takes one sample at a time."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from beem_plugin.calibration.replay import ExitDecisions, replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, DataError, NotCalibratedError
from beem_plugin.common.registry import Params
from beem_plugin.exits.policies import ExitPolicy, ThresholdPolicy
from beem_plugin.exits.policies.cascaded_ensemble import fit_ensemble, train_ensembles
from beem_plugin.exits.signals import ExitSignals

from . import reference_policies
from .random_traces import random_trace

Case = Callable[[random.Random, int, int], dict[str, Any]]
TRACES = 125


def some_thresholds(rng: random.Random, num_exits: int, low: float, high: float, exact: list[float]) -> Any:
    """One number, a number that scores hit exactly, a list of both with "never" among them, or "never"."""

    def one() -> Any:
        return rng.choice([round(rng.uniform(low, high), 4), round(rng.uniform(low, high), 4), rng.choice(exact)])

    kind = rng.random()
    if kind < 0.45:
        return one()
    if kind < 0.5:
        return "never"
    return [rng.choice([one(), one(), one(), "never"]) for _ in range(num_exits - 1)]


def some_min_exit(rng: random.Random, num_exits: int) -> dict[str, int]:
    return {"min_exit": rng.randint(1, num_exits)} if rng.random() < 0.3 else {}


def probability_rule(low: float, high: float, exact: list[float], **options: list[Any]) -> Case:
    def draw(rng: random.Random, num_exits: int, num_labels: int) -> dict[str, Any]:
        config: dict[str, Any] = {key: rng.choice(values) for key, values in options.items()}
        config["thresholds"] = some_thresholds(rng, num_exits, low, high, exact)
        return {**config, **some_min_exit(rng, num_exits)}

    return draw


def beem_case(rng: random.Random, num_exits: int, num_labels: int) -> dict[str, Any]:
    config = probability_rule(0.05, 4, [0.5, 1.0], on_disagreement=["restart", "zero"])(rng, num_exits, num_labels)
    config["weights"] = rng.choice(
        [
            "cost",
            {"type": "cost", "scale": 0.4, "offset": -1},
            {"type": "cost", "scale": 1 / num_exits},
            [rng.choice([0.0, 1.0, rng.random()]) for _ in range(num_exits)],
        ]
    )
    return config


def ensemble_case(rng: random.Random, num_exits: int, num_labels: int) -> dict[str, Any]:
    config = probability_rule(0.2, 1, [0.5, 1.0])(rng, num_exits, num_labels)
    if rng.random() < 0.5:
        config["weights"] = [[rng.choice([0.0, 1.0, 2 * rng.random()]) for _ in range(m)] for m in range(1, num_exits)]
    if rng.random() < 0.5:
        config["bias"] = [[rng.gauss(0, 1) for _ in range(num_labels)] for _ in range(1, num_exits)]
    return config


def expected_gain_case(rng: random.Random, num_exits: int, num_labels: int) -> dict[str, Any]:
    config = probability_rule(0, 0.05, [0.0])(rng, num_exits, num_labels)

    def rows(count: int, scale: float) -> list[list[float]]:
        return [[rng.gauss(0, scale) for _ in range(count)] for _ in range(num_exits - 1)]

    config["model"] = {
        "memory": [2 * rng.random() for _ in range(num_exits - 1)],
        "trust": [2 * rng.random() for _ in range(num_exits - 1)],
        "bias": rows(num_labels, 1.0),
        "change": rows(3, 0.5),
        "change_bias": rows(num_labels, 1.0),
        "gain": [0.1 * rng.random() for _ in range(num_exits - 1)],
    }
    return config


def halting_case(rng: random.Random, num_exits: int, num_labels: int) -> dict[str, Any]:
    if rng.random() < 0.3:
        return {"threshold": rng.choice([0.5, 0.25, 0.9])} if rng.random() < 0.5 else {}
    return probability_rule(0, 1, [0.5, 0.75, 1.0])(rng, num_exits, num_labels)


def confident_patience_case(rng: random.Random, num_exits: int, num_labels: int) -> dict[str, Any]:
    return {
        "patience": rng.randint(1, 4),
        "entropy_threshold": rng.choice([0.0, 1 / 18, 0.2, 0.5, rng.random(), 1.5]),
        "output": rng.choice(["last", "run_mean", "mean"]),
    }


def decaying_case(rng: random.Random, num_exits: int, num_labels: int) -> dict[str, Any]:
    kind = rng.choice(["margin", "max_probability", "similarity", "beem"])
    inner = CASES[kind](rng, num_exits, num_labels)
    inner.pop("fallback", None)  # it answers for the last exit alone, whatever the thresholds are
    config: dict[str, Any] = {"policy": {"type": kind, **inner}, "decay": rng.choice(["calm", "mue"])}
    if rng.random() < 0.7:
        config["max_length"] = rng.choice([1, 6, 12, 30])
    if rng.random() < 0.5:
        config["temperature"] = rng.choice([0.0, 1.0, 4.0])
    return config


CASES: dict[str, Case] = {
    "beem": beem_case,
    "max_probability": probability_rule(0.2, 1, [0.5, 1.0], fallback=["last", "most_confident"]),
    "margin": probability_rule(0, 1, [0.0, 1.0]),
    "entropy": probability_rule(0, 1.2, [0.0, 0.5], normalized=[True, False]),
    "patience": lambda rng, num_exits, num_labels: {"patience": rng.randint(1, 6)},
    "confident_patience": confident_patience_case,
    "voting": probability_rule(0.1, 3, [0.5, 0.6, 0.75, 1.0, 2.0, 3.0], exponent=[0, 1, 1, 0.5]),
    "cascaded_ensemble": ensemble_case,
    "expected_gain": expected_gain_case,
    "halting": halting_case,
    "gate": probability_rule(0, 1, [0.5, 0.5, 0.25, 1.0]),
    "predicted_error": probability_rule(0, 1, [0.0, 0.25, 0.5, 1.0]),
    "similarity": probability_rule(-1, 1, [-1.0, 0.0, 0.875, 1.0]),
    "decaying_threshold": decaying_case,
    "fixed_exit": lambda rng, num_exits, num_labels: {"exit": rng.randint(1, num_exits)},
    "final": lambda rng, num_exits, num_labels: {},
}
WRAPPERS = {"calibrated", "online", "split"}  # other rules, with other confidences or thresholds
ALIASES = {"confidence": "max_probability", "q_exit": "halting"}


def build(name: str, config: dict[str, Any]) -> ExitPolicy:
    return ExitPolicy.from_params(Params(copy.deepcopy({"type": name, **config})))


def resolved(name: str, config: dict[str, Any], num_exits: int) -> dict[str, Any]:
    """The config with the weights as numbers, as the reference takes them."""
    if name == "decaying_threshold":
        inner = config["policy"]
        return {**config, "policy": resolved(inner["type"], inner, num_exits)}
    if name != "beem" or isinstance(config["weights"], list):
        return config
    block = {"type": "cost"} if config["weights"] == "cost" else config["weights"]
    scale, offset = block.get("scale", 0.1), block.get("offset", 0)
    return {**config, "weights": [scale * (exit_number + offset) for exit_number in range(1, num_exits + 1)]}


def step_with_compaction(policy: ExitPolicy, trace: ExitTrace, rng: random.Random) -> ExitDecisions:
    """What an executing engine does: only those who are still there are stepped, in whatever order."""
    samples = len(trace)
    exits = torch.zeros(samples, dtype=torch.int64)
    output = torch.zeros(samples, trace.num_labels, dtype=torch.float64)
    scores: torch.Tensor | None = None
    here = torch.arange(samples)
    policy.bind(trace.exit_layers, trace.num_labels)
    state = policy.start(samples, trace.num_exits, "cpu")
    for exit_number in range(1, trace.num_exits + 1):
        leaves, state = policy.step(exit_number, trace.exit_signals(exit_number).index_select(here), state)
        if exit_number == trace.num_exits:
            leaves = torch.ones_like(leaves)
        gone = here[leaves]
        exits[gone] = exit_number
        signals = trace.exit_signals(exit_number).index_select(here)
        output[gone] = policy.output(exit_number, signals, state)[leaves]
        score = policy.score(state)
        if score is not None:
            scores = torch.zeros(samples, dtype=torch.float64) if scores is None else scores
            scores[gone] = score[leaves]
        keep = (~leaves).nonzero().flatten()
        keep = keep[torch.tensor(rng.sample(range(len(keep)), len(keep)), dtype=torch.int64)]
        here, state = here[keep], state.index_select(keep)
    return ExitDecisions(exits, output.argmax(-1), output, scores)


def test_every_registered_rule_has_a_reference():
    rules = {
        name
        for name in ExitPolicy.list_available()
        if ExitPolicy.by_name(name).__module__.startswith("beem_plugin.exits.policies.")
    }
    assert rules - WRAPPERS == set(CASES) | set(ALIASES)


@pytest.mark.parametrize("name", CASES)
def test_replay_equals_one_sample_at_a_time(name):
    rng = random.Random(f"reference {name}")
    reference = getattr(reference_policies, name)
    judged = samples = 0
    for _ in range(TRACES):
        trace = random_trace(rng)
        config = CASES[name](rng, trace.num_exits, trace.num_labels)
        decisions = replay(build(name, config), trace)
        arguments = resolved(name, config, trace.num_exits)
        for row in range(len(trace)):
            signals = {key: value[row].tolist() for key, value in trace.signals.items()}
            expected = reference(trace.logits[row].tolist(), signals, **arguments)
            samples += 1
            if expected.unsure:
                continue
            judged += 1
            said = f"{config}, sample {row}: {trace.logits[row].tolist()} {signals}"
            assert int(decisions.exits[row]) == expected.exit, said
            assert int(decisions.predictions[row]) in expected.labels, said
            assert (decisions.scores is None) == (expected.score is None)
            if decisions.scores is not None:
                assert float(decisions.scores[row]) == pytest.approx(expected.score, rel=1e-9, abs=1e-9), said
    assert judged > 0.97 * samples


@pytest.mark.parametrize("name", CASES)
def test_compacted_batches_and_single_samples_equal_replay(name):
    rng = random.Random(f"compaction {name}")
    for _ in range(30):
        trace = random_trace(rng)
        policy = build(name, CASES[name](rng, trace.num_exits, trace.num_labels))
        whole = replay(policy, trace)
        for decisions in (
            step_with_compaction(policy, trace, rng),
            join([replay(policy, trace.select([row])) for row in range(len(trace))]),
        ):
            assert torch.equal(decisions.exits, whole.exits)
            assert torch.equal(decisions.predictions, whole.predictions)
            assert torch.equal(decisions.log_probabilities, whole.log_probabilities)
            if whole.scores is None:
                assert decisions.scores is None
            else:
                assert torch.equal(decisions.scores, whole.scores)


def join(parts: list[ExitDecisions]) -> ExitDecisions:
    return ExitDecisions(
        torch.cat([part.exits for part in parts]),
        torch.cat([part.predictions for part in parts]),
        torch.cat([part.log_probabilities for part in parts]),
        None if parts[0].scores is None else torch.cat([part.scores for part in parts]),
    )


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_finite_log_probabilities_of_the_prediction(name):
    rng = random.Random(f"outputs {name}")
    for _ in range(30):
        trace = random_trace(rng)
        decisions = replay(build(name, CASES[name](rng, trace.num_exits, trace.num_labels)), trace)
        assert torch.isfinite(decisions.log_probabilities).all()
        assert torch.allclose(decisions.log_probabilities.exp().sum(-1), torch.ones(len(trace), dtype=torch.float64))


@pytest.mark.parametrize("name", CASES)
def test_a_policy_rebuilt_from_its_config_is_the_same(name):
    rng = random.Random(f"config {name}")
    for _ in range(20):
        trace = random_trace(rng)
        policy = build(name, CASES[name](rng, trace.num_exits, trace.num_labels))
        decisions = replay(policy, trace)
        config = policy.to_config()
        assert config["type"] == name
        again = ExitPolicy.from_params(Params(copy.deepcopy(config)))
        assert torch.equal(replay(again, trace).exits, decisions.exits)
        assert again.to_config() == config


@pytest.mark.parametrize("name", CASES)
def test_half_precision_logits_decide_as_the_same_numbers_in_single_precision(name):
    rng = random.Random(f"half {name}")
    for _ in range(10):
        trace = random_trace(rng)
        halves = trace.logits.half() if trace.logits.abs().max() < 6e4 else trace.logits.bfloat16()
        exact = ExitTrace(halves.float(), trace.labels, signals=trace.signals)
        policy = build(name, CASES[name](rng, trace.num_exits, trace.num_labels))
        expected = replay(policy, exact)
        state = policy.start(len(trace), trace.num_exits, "cpu")
        exits = torch.zeros(len(trace), dtype=torch.int64)
        for exit_number in range(1, trace.num_exits + 1):
            column = exit_number - 1
            signals = ExitSignals(halves[:, column], {key: value[:, column] for key, value in trace.signals.items()})
            leaves, state = policy.step(exit_number, signals, state)
            leaves = leaves | (exit_number == trace.num_exits)
            exits[leaves & (exits == 0)] = exit_number
        assert torch.equal(exits, expected.exits)


@pytest.mark.parametrize("name", CASES)
def test_a_thousand_labels_and_no_samples(name):
    rng = random.Random(f"sizes {name}")
    for num_labels in (2, 1000):
        trace = random_trace(rng, num_exits=4, num_labels=num_labels)
        policy = build(name, CASES[name](rng, 4, num_labels))
        assert torch.isfinite(replay(policy, trace).log_probabilities).all()
        assert len(replay(policy, trace.select([])).exits) == 0


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_is_the_same_rule_and_resolves_to_its_own_name(alias, name):
    policy = build(alias, {"thresholds": 0.7})
    replay(policy, random_trace(random.Random(1), num_exits=3))
    assert type(policy) is ExitPolicy.by_name(name)
    assert policy.to_config()["type"] == name


# --- values worked out by hand --------------------------------------------------------------------


def agreeing(num_exits: int, samples: int = 1) -> ExitTrace:
    """Every exit gives label 1 with probability 1."""
    logits = torch.zeros(samples, num_exits, 2)
    logits[:, :, 1] = 1e4
    return ExitTrace(logits, torch.ones(samples, dtype=torch.int64))


def test_beem_c_scores_of_full_agreement_are_the_triangular_numbers():
    trace = agreeing(12)
    policy = build("beem", {"weights": "cost", "thresholds": "never"})
    policy.bind(trace.exit_layers, 2)
    state, scores = policy.start(1, 12), []
    for exit_number in range(1, 13):
        _, state = policy.step(exit_number, trace.exit_signals(exit_number), state)
        scores.append(float(policy.score(state)))
    assert scores == pytest.approx([0.1, 0.3, 0.6, 1.0, 1.5, 2.1, 2.8, 3.6, 4.5, 5.5, 6.6, 7.8])


@pytest.mark.parametrize(("alpha", "exit_number"), [(0.3, 2), (0.6, 3), (0.9, 4), (1.2, 5), (1.5, 5), (5.0, 10)])
def test_beem_c_first_exits_of_the_papers_grid(alpha, exit_number):
    decisions = replay(build("beem", {"weights": "cost", "thresholds": alpha}), agreeing(12))
    assert decisions.exits.tolist() == [exit_number]


@pytest.mark.parametrize(("alpha", "exit_number"), [(0.9, 1), (1.5, 2), (3.0, 4), (5.0, 6)])
def test_beem_a_first_exits_with_accuracies_near_nine_tenths(alpha, exit_number):
    decisions = replay(build("beem", {"weights": [0.9001] * 12, "thresholds": alpha}), agreeing(12))
    assert decisions.exits.tolist() == [exit_number]


def test_the_score_of_beem_c_reaches_the_number_of_layers_so_that_it_cannot_mean_never():
    decisions = replay(build("beem", {"weights": "cost", "thresholds": 24}), agreeing(24))
    assert decisions.exits.tolist() == [22]
    decisions = replay(build("beem", {"weights": "cost", "thresholds": "never"}), agreeing(24))
    assert decisions.exits.tolist() == [24]


def labelled(rows: list[list[int]], num_labels: int = 3) -> ExitTrace:
    """A trace whose exits give these labels, with probability 1."""
    predictions = torch.tensor(rows)
    logits = 1e4 * torch.nn.functional.one_hot(predictions, num_labels).float()
    return ExitTrace(logits, predictions[:, -1])


def test_the_released_beem_code_gives_exit_1_no_weight_and_a_changed_label_no_credit():
    config = {"weights": {"type": "cost", "scale": 0.4, "offset": -1}, "on_disagreement": "zero", "thresholds": 0.4}
    trace = labelled([[1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 0, 0]])
    assert replay(build("beem", config), trace).exits.tolist() == [2, 3, 4]
    config["on_disagreement"] = "restart"
    assert replay(build("beem", config), trace).exits.tolist() == [2, 2, 2]


def test_patience_counts_agreements_and_confident_patience_counts_exits():
    trace = labelled([[1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1]])
    assert replay(build("patience", {"patience": 3}), trace).exits.tolist() == [4, 6]
    confident = build("confident_patience", {"patience": 3, "entropy_threshold": 0.1})
    assert replay(confident, trace).exits.tolist() == [3, 3]


def test_votes_that_tie_go_to_the_label_that_was_voted_for_last():
    trace = labelled([[2, 1, 1, 2, 0], [0, 1, 2, 0, 1]])
    votes = replay(build("voting", {"thresholds": "never", "exponent": 0}), trace)
    assert votes.predictions.tolist() == [2, 1]
    assert votes.scores.tolist() == [2, 2]
    early = replay(build("voting", {"thresholds": 0.4, "min_exit": 4}), trace)
    assert (early.exits.tolist(), early.predictions.tolist()) == ([4, 4], [2, 0])


def test_three_votes_of_five_do_not_pass_three_fifths():
    trace = labelled([[0, 1, 0, 1, 0, 0]])
    assert replay(build("voting", {"thresholds": 0.6, "min_exit": 4}), trace).exits.tolist() == [6]
    assert replay(build("voting", {"thresholds": 0.59, "min_exit": 4}), trace).exits.tolist() == [5]


def test_shallow_deep_falls_back_on_the_most_confident_exit():
    trace = ExitTrace(torch.tensor([[[0.0, 1.0], [2.0, 0.0], [0.0, 0.5]]]), torch.tensor([0]))
    last = replay(build("max_probability", {"thresholds": 0.95}), trace)
    surest = replay(build("max_probability", {"thresholds": 0.95, "fallback": "most_confident"}), trace)
    assert (last.exits.tolist(), last.predictions.tolist()) == ([3], [1])
    assert (surest.exits.tolist(), surest.predictions.tolist()) == ([3], [0])


def signalled(name: str, values: list[float]) -> ExitTrace:
    exits = len(values)
    return ExitTrace(
        torch.zeros(1, exits, 2), torch.zeros(1, dtype=torch.int64), signals={name: torch.tensor([values])}
    )


def test_q_exit_is_the_median_of_the_halting_distribution_strictly():
    # CDF 0.25, 0.5, 0.75
    trace = signalled("halt", [0.25, 1 / 3, 0.5, 1.0])
    assert replay(build("halting", {}), signalled("halt", [0.5, 0.5, 0.5])).exits.tolist() == [2]
    assert replay(build("halting", {"threshold": 0.6}), trace).exits.tolist() == [3]


def test_gates_are_read_in_the_light_of_earlier_ones():
    # P = 0.25, 0.25, 0.25, 0.25; given that the sample is still there 0.25, 1/3, 0.5, 1
    decisions = replay(build("gate", {}), signalled("gate", [0.25, 0.25, 0.25, 0.75]))
    assert (decisions.exits.tolist(), decisions.scores.tolist()) == ([3], [0.5])


def test_a_fitted_ensemble_is_better_than_the_uniform_one_on_its_data():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 3, (400,), generator=generator)
    logits = torch.randn(400, 4, 3, generator=generator)
    logits[torch.arange(400), 2, truth] += 3  # the third exit knows, the others guess
    trace = ExitTrace(logits, truth)
    fitted = build("cascaded_ensemble", {"weights": "fit", "thresholds": 0.9})
    assert not fitted.is_calibrated
    with pytest.raises(NotCalibratedError):
        replay(fitted, trace)
    fitted.calibrate(trace)
    weights = fitted.to_config()["weights"]
    assert [len(row) for row in weights] == [1, 2, 3]
    assert weights[2][2] > 5 * max(weights[2][:2])
    loss = {}
    for name, policy in (("fit", fitted), ("uniform", build("cascaded_ensemble", {"thresholds": 0.0, "min_exit": 3}))):
        policy.bind(trace.exit_layers, 3)
        state = policy.start(400, 4)
        for exit_number in (1, 2, 3):
            signals = trace.exit_signals(exit_number)
            _, state = policy.step(exit_number, signals, state)
        loss[name] = float(torch.nn.functional.nll_loss(policy.output(3, signals, state), truth))
    assert loss["fit"] < loss["uniform"]
    trained = build("cascaded_ensemble", {"weights": "adam", "thresholds": 0.9})
    other = ExitTrace(torch.randn(50, 4, 3, generator=generator), torch.zeros(50, dtype=torch.int64))
    trained.calibrate(other, trace)  # weights by the second trace
    weights = trained.to_config()["weights"]
    assert [len(row) for row in weights] == [1, 2, 3] and weights[2][2] > 5 * max(weights[2][:2])


def test_a_fitted_ensemble_has_the_least_cross_entropy():
    generator = torch.Generator().manual_seed(2)
    outputs = torch.randn(3, 60, 2, generator=generator, dtype=torch.float64).log_softmax(-1)
    labels = torch.where(torch.rand(60, generator=generator) < 0.8, outputs[0].argmax(-1), outputs[2].argmax(-1))
    weights, bias = fit_ensemble(outputs, labels)
    w = torch.tensor(weights, dtype=torch.float64).log().requires_grad_()
    b = torch.tensor(bias, dtype=torch.float64).requires_grad_()
    logits = sum(w[j].exp() * outputs[j] for j in range(3)) / 3 + b
    loss = torch.nn.functional.cross_entropy(logits, labels) + 1e-4 * (w.square().sum() + b.square().sum())
    loss.backward()
    assert w.grad.abs().max() < 1e-4 and b.grad.abs().max() < 1e-4


def test_an_ensemble_is_trained_as_in_the_release():
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(3, 70, 2, generator=generator, dtype=torch.float64).log_softmax(-1)
    labels = torch.randint(0, 2, (70,), generator=generator)
    weights, biases = train_ensembles(outputs, labels)
    order = torch.Generator().manual_seed(0)
    batches = [rows for _ in range(5) for rows in torch.randperm(70, generator=order).split(32)]
    assert [len(rows) for rows in batches[:3]] == [32, 32, 6]
    for number in range(3):  # each ensemble by itself, with plain Adam
        w = [torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in range(number + 1)]
        b = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([*w, b], lr=0.1)
        for rows in batches:
            mixed = sum(w[j].exp() * outputs[j, rows] for j in range(number + 1)) / (number + 1) + b
            loss = torch.nn.functional.cross_entropy(mixed, labels[rows]) / 3
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(weights[number], [float(value.detach().exp()) for value in w])
        torch.testing.assert_close(biases[number], b.tolist())


def test_fitting_an_ensemble_survives_saturated_exits_without_an_error():
    fitted = build("cascaded_ensemble", {"weights": "fit", "thresholds": 0.9})
    fitted.calibrate(labelled([[0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 1, 2]]))
    assert torch.isfinite(torch.tensor([value for row in fitted.weights for value in row])).all()


# --- what is refused ------------------------------------------------------------------------------

WITH_THRESHOLDS = [name for name in CASES if issubclass(ExitPolicy.by_name(name), ThresholdPolicy)]


def within(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Where the thresholds belong to a policy inside, that one's config."""
    return {"policy": {"type": "margin", **config}} if name == "decaying_threshold" else config


@pytest.mark.parametrize("name", WITH_THRESHOLDS)
@pytest.mark.parametrize("length", [3, 5])
def test_a_threshold_list_of_the_wrong_length_is_refused(name, length):
    trace = random_trace(random.Random(2), num_exits=5)
    with pytest.raises(ConfigurationError, match=f"a list of {length}, allowed: 4 entries"):
        replay(build(name, within(name, {"thresholds": [0.5] * length})), trace)


@pytest.mark.parametrize("name", sorted(set(WITH_THRESHOLDS) - {"halting", "gate"}))
def test_a_rule_without_thresholds_does_not_decide(name):
    with pytest.raises(NotCalibratedError):
        replay(build(name, within(name, {})), random_trace(random.Random(3), num_exits=3))


@pytest.mark.parametrize("name", ["halting", "gate", "predicted_error", "similarity"])
def test_a_missing_signal_is_named(name):
    trace = agreeing(3)
    with pytest.raises(ConfigurationError, match="needs the signals"):
        replay(build(name, {"thresholds": 0.5}), trace)


@pytest.mark.parametrize(("name", "signal"), [("halting", "halt"), ("gate", "gate"), ("predicted_error",) * 2])
def test_logits_in_place_of_probabilities_are_refused(name, signal):
    with pytest.raises(DataError, match=f"{signal}.*sample 0: found 3.5"):
        replay(build(name, {"thresholds": 0.5}), signalled(signal, [0.5, 3.5, 0.1]))


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("beem", {"weights": [1, 1], "thresholds": 1}, "weights: found a list of 2, allowed: 3"),
        ("beem", {"on_disagreement": "reset"}, "on_disagreement: found 'reset'"),
        ("max_probability", {"thresholds": 0.5, "fallback": "best"}, "fallback: found 'best'"),
        ("max_probability", {"thresholds": 0.5, "min_exit": 4}, "min_exit: found 4, allowed: 1 to 3"),
        ("max_probability", {"thresholds": 0.5, "min_exit": 0}, "min_exit: found 0"),
        ("patience", {"patience": 0}, "patience: found 0"),
        ("confident_patience", {"patience": 0, "entropy_threshold": 0.1}, "patience: found 0"),
        ("confident_patience", {"patience": 1, "entropy_threshold": -0.1}, "entropy_threshold: found -0.1"),
        ("confident_patience", {"patience": 1, "entropy_threshold": 0.1, "output": "sum"}, "output: found 'sum'"),
        ("voting", {"thresholds": 0.5, "exponent": -1.0}, "exponent: found -1"),
        ("cascaded_ensemble", {"thresholds": 0.5, "weights": "learned"}, "weights: found 'learned'"),
        ("cascaded_ensemble", {"thresholds": 0.5, "weights": [[1.0], [1.0]]}, r"weights.1: .* allowed: \(2,\)"),
        (
            "cascaded_ensemble",
            {"thresholds": 0.5, "weights": [[-1.0], [1.0, 1.0]]},
            "weights.0: found -1.0, allowed: 0",
        ),
        ("cascaded_ensemble", {"thresholds": 0.5, "bias": [[0.0], [0.0]]}, r"bias: .* allowed: \(2, 2\)"),
        ("cascaded_ensemble", {"weights": "fit", "bias": [[0.0]]}, "bias: found one beside"),
        ("halting", {"threshold": 0.5, "thresholds": 0.5}, "both threshold and thresholds"),
        ("fixed_exit", {"exit": 4}, "exit: found 4, allowed: 1 to 3"),
        ("fixed_exit", {"exit": 0}, "exit: found 0"),
    ],
)
def test_a_wrong_parameter_is_refused_in_one_line(name, config, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        replay(build(name, config), agreeing(3))
    assert "\n" not in str(caught.value)


def test_accuracy_weights_fitted_for_another_network_are_refused():
    policy = build("beem", {"weights": "accuracy", "thresholds": 0.5})
    policy.calibrate(agreeing(4))
    with pytest.raises(ConfigurationError, match="calibrated for 4 exits, found a network of 3"):
        replay(policy, agreeing(3))


def test_regression_is_refused():
    with pytest.raises(ConfigurationError, match="found a regression"):
        build("entropy", {"thresholds": 0.5}).bind([1, 2, 3], 1)
