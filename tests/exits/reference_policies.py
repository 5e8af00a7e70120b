"""
Every exit rule once more: slow, for one sample at a time, in plain Python, and written from the papers' formulas rather
than from the package. Exits are numbered from 1; `logits[i - 1]` are exit i's.

A rule returns an `Outcome`. Where it computes in floating point, a score that differs from its threshold by rounding
only (or that equals a threshold which floats cannot hit reliably) makes the outcome `unsure`: another order of
summation might decide the other way, so that such a sample proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

ROUNDING = 1e-9
HIT_RELIABLY = (0, 0.5, 1)


@dataclass
class Outcome:
    exit: int
    labels: set[int]  # more than one where floating point cannot tell which is larger
    score: float | None
    unsure: bool = False


def softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(value - top) for value in logits]
    total = math.fsum(powers)
    return [power / total for power in powers]


def log_softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    total = math.log(math.fsum(math.exp(value - top) for value in logits))
    return [value - top - total for value in logits]


def entropy_of(logits: Sequence[float]) -> float:
    return -math.fsum(p * math.log(p) for p in softmax(logits) if p > 0)


def first_best(logits: Sequence[float]) -> int:
    return list(logits).index(max(logits))


def best_up_to_rounding(values: Sequence[float]) -> set[int]:
    return {label for label, value in enumerate(values) if value >= max(values) - ROUNDING}


def threshold_at(thresholds: Any, exit_number: int) -> float | None:
    value = thresholds[exit_number - 1] if isinstance(thresholds, list) else thresholds
    return None if value == "never" else value


def first_exit(
    scores: Sequence[Any], thresholds: Any, leaves: Callable[[Any, float], bool], min_exit: int, exact: bool = False
) -> tuple[int, bool]:
    """The first exit whose score `leaves` under its threshold, else the last; and whether that is unsure."""
    unsure = False
    for number in range(1, len(scores)):
        threshold = threshold_at(thresholds, number)
        if number < min_exit or threshold is None:
            continue
        score = scores[number - 1]
        if not exact:
            distance = abs(score - threshold)
            unsure |= 0 < distance < ROUNDING or (distance == 0 and threshold not in HIT_RELIABLY)
        if leaves(score, threshold):
            return number, unsure
    return len(scores), unsure


def at_least(score: Any, threshold: float) -> bool:
    return score >= threshold


def above(score: Any, threshold: float) -> bool:
    return score > threshold


def below(score: Any, threshold: float) -> bool:
    return score < threshold


def own_output(logits: Any, scores: Sequence[Any], where: tuple[int, bool]) -> Outcome:
    number, unsure = where
    return Outcome(number, {first_best(logits[number - 1])}, float(scores[number - 1]), unsure)


def beem(logits, signals, *, weights, thresholds, on_disagreement="restart", min_exit=1) -> Outcome:
    scores: list[float] = []
    for i, row in enumerate(logits):
        gain = weights[i] * max(softmax(row))
        if i == 0:
            scores.append(gain)
        elif first_best(row) == first_best(logits[i - 1]):
            scores.append(scores[-1] + gain)
        else:
            scores.append(gain if on_disagreement == "restart" else 0.0)
    return own_output(logits, scores, first_exit(scores, thresholds, at_least, min_exit))


def max_probability(logits, signals, *, thresholds, fallback="last", min_exit=1) -> Outcome:
    scores = [max(softmax(row)) for row in logits]
    outcome = own_output(logits, scores, first_exit(scores, thresholds, at_least, min_exit))
    if fallback == "most_confident" and outcome.exit == len(logits):
        allowed = range(min_exit - 1, len(logits))
        highest = max(scores[i] for i in allowed)
        near = [i for i in allowed if scores[i] > highest - ROUNDING]
        equal = all(scores[i] == highest for i in near)
        outcome.labels = {first_best(logits[i]) for i in (near[:1] if equal and highest in HIT_RELIABLY else near)}
    return outcome


def margin(logits, signals, *, thresholds, min_exit=1) -> Outcome:
    scores = []
    for row in logits:
        first, second = sorted(softmax(row), reverse=True)[:2]
        scores.append(first - second)
    return own_output(logits, scores, first_exit(scores, thresholds, at_least, min_exit))


def entropy(logits, signals, *, thresholds, normalized=False, min_exit=1) -> Outcome:
    scale = math.log(len(logits[0])) if normalized else 1
    scores = [entropy_of(row) / scale for row in logits]
    return own_output(logits, scores, first_exit(scores, thresholds, below, min_exit))


def patience(logits, signals, *, patience) -> Outcome:
    labels = [first_best(row) for row in logits]
    agreements = 0
    for i in range(len(labels)):
        agreements = agreements + 1 if i > 0 and labels[i] == labels[i - 1] else 0
        if agreements == patience:
            break
    return Outcome(i + 1, {labels[i]}, agreements)


def confident_patience(logits, signals, *, patience, entropy_threshold, output="last") -> Outcome:
    run: list[int] = []
    unsure = False
    for i, row in enumerate(logits):
        normalized = entropy_of(row) / math.log(len(row))
        unsure |= abs(normalized - entropy_threshold) < ROUNDING and not normalized == entropy_threshold == 0
        run = [*run, i] if normalized < entropy_threshold else []
        if len(run) == patience:
            break
    if output == "last" or (output == "run_mean" and not run):
        return Outcome(i + 1, {first_best(logits[i])}, len(run), unsure)
    pooled = run if output == "run_mean" else list(range(i + 1))
    columns = zip(*(softmax(logits[j]) for j in pooled), strict=True)
    labels = best_up_to_rounding([math.fsum(column) / len(pooled) for column in columns])
    return Outcome(i + 1, labels, len(run), unsure)


def voting(logits, signals, *, thresholds, exponent=1, min_exit=1) -> Outcome:
    votes = [first_best(row) for row in logits]
    scores: list[Any] = []
    for i in range(1, len(votes) + 1):
        most = max(votes[:i].count(label) for label in votes[:i])
        scores.append(Fraction(most, i**exponent) if exponent in (0, 1) else most / i**exponent)
    if exponent in (0, 1):
        exact = [value if value == "never" else as_fraction(value) for value in as_list(thresholds, len(votes))]
        number, unsure = first_exit(scores, exact, above, min_exit, exact=True)
    else:
        number, unsure = first_exit(scores, thresholds, above, min_exit)
    cast = votes[:number]
    leaders = {label for label in cast if cast.count(label) == max(cast.count(other) for other in cast)}
    latest = [label for label in cast if label in leaders][-1]
    return Outcome(number, {latest}, float(scores[number - 1]), unsure)


def cascaded_ensemble(logits, signals, *, thresholds, weights="uniform", bias=None, min_exit=1) -> Outcome:
    num_exits, num_labels = len(logits), len(logits[0])
    answers = []
    for m in range(1, num_exits):
        a = [1.0] * m if weights == "uniform" else weights[m - 1]
        b = [0.0] * num_labels if bias is None else bias[m - 1]
        logs = [log_softmax(logits[j]) for j in range(m)]
        answers.append(softmax([math.fsum(a[j] * logs[j][c] for j in range(m)) / m + b[c] for c in range(num_labels)]))
    scores = [max(answer) for answer in answers] + [max(softmax(logits[-1]))]
    number, unsure = first_exit(scores, thresholds, above, min_exit)
    labels = {first_best(logits[-1])} if number == num_exits else best_up_to_rounding(answers[number - 1])
    return Outcome(number, labels, scores[number - 1], unsure)


def expected_gain(logits, signals, *, thresholds, model, min_exit=1) -> Outcome:
    least = math.log(1e-4)
    num_exits, num_labels = len(logits), len(logits[0])

    def odds(logs: Sequence[float], label: int) -> float:
        others = [value for c, value in enumerate(logs) if c != label]
        top = max(others)
        return logs[label] - top - math.log(math.fsum(math.exp(value - top) for value in others))

    vote, before = [0.0] * num_labels, None
    scores, labels, close = [], [], []
    for i in range(num_exits - 1):
        own = [max(value, least) for value in log_softmax(logits[i])]
        combined = [
            model["memory"][i] * vote[c] + model["trust"][i] * own[c] + model["bias"][i][c] for c in range(num_labels)
        ]
        vote = [max(value, least) for value in log_softmax(combined)]
        label = first_best(vote)
        close.append(len(best_up_to_rounding(vote)) > 1)
        weights, sources = model["change"][i], (vote, own, before or own)
        z = model["change_bias"][i][label] + math.fsum(w * odds(v, label) for w, v in zip(weights, sources))
        scores.append(model["gain"][i] * (1 / (1 + math.exp(-z)) if z > -500 else 0.0))
        labels.append(label)
        before = own
    scores.append(0.0)
    labels.append(first_best(logits[-1]))
    number, unsure = first_exit(scores, thresholds, lambda score, threshold: score <= threshold, min_exit)
    return Outcome(number, {labels[number - 1]}, scores[number - 1], unsure or any(close[:number]))


def halting(logits, signals, *, threshold=None, thresholds=0.5, min_exit=1) -> Outcome:
    limits = as_list(thresholds if threshold is None else threshold, len(logits))
    chances = [Fraction(value) for value in signals["halt"]]
    here = [
        chances[i] * math.prod((1 - chance for chance in chances[:i]), start=Fraction(1)) for i in range(len(chances))
    ]
    scores = [sum(here[: i + 1], start=Fraction(0)) for i in range(len(here))]
    exact = [value if value == "never" else as_fraction(value) for value in limits]
    return own_output(logits, scores, first_exit(scores, exact, above, min_exit, exact=True))


def gate(logits, signals, *, thresholds=0.5, min_exit=1) -> Outcome:
    gates = [Fraction(value) for value in signals["gate"]]
    scores = []
    not_before = Fraction(1)  # the product of 1 - (chance of leaving at j, given that the sample got there)
    for i in range(len(gates)):
        chance = max(min(gates[i], 1 - sum(gates[:i], start=Fraction(0))), Fraction(0))
        given = max(min(chance / not_before, Fraction(1)), Fraction(0)) if not_before > 0 else Fraction(1)
        not_before *= 1 - given
        scores.append(given)
    exact = [value if value == "never" else as_fraction(value) for value in as_list(thresholds, len(logits))]
    return own_output(logits, scores, first_exit(scores, exact, at_least, min_exit, exact=True))


def predicted_error(logits, signals, *, thresholds, min_exit=1) -> Outcome:
    scores = signals["predicted_error"]
    return own_output(logits, scores, first_exit(scores, thresholds, below, min_exit, exact=True))


def similarity(logits, signals, *, thresholds, min_exit=1) -> Outcome:
    scores = signals["similarity"]
    return own_output(logits, scores, first_exit(scores, thresholds, above, min_exit, exact=True))


def decaying_threshold(logits, signals, *, policy, decay="calm", max_length=20, temperature=4.0) -> Outcome:
    """The formulas of CALM and MuE for the threshold itself; the score reported is what would have to exceed lambda."""
    rule = dict(policy)
    kind = rule.pop("type")
    thresholds, min_exit = rule.pop("thresholds"), rule.pop("min_exit", 1)
    never = globals()[kind](logits, signals, **rule, thresholds="never")
    own = []  # what the rule compares at each exit: its score if it were the last one
    for count in range(1, len(logits) + 1):
        shorter = {name: values[:count] for name, values in signals.items()}
        weights = {"weights": rule["weights"][:count]} if "weights" in rule else {}
        own.append(globals()[kind](logits[:count], shorter, **{**rule, **weights}, thresholds="never").score)
    assert own[-1] == never.score
    position = signals["position"][0]
    if decay == "calm":
        bonus = 0.1 * math.exp(-temperature * position / max_length)
    else:
        bonus = 0.1 * math.exp(-(position + 1) / (max_length + 1))
    held = decay == "mue" and position < max_length / 3
    exit_number, unsure = len(logits), False
    for number in range(1, len(logits)):
        threshold = threshold_at(thresholds, number)
        if number < min_exit or threshold is None or held:
            continue
        limit = 0.9 * threshold + bonus
        unsure |= abs(own[number - 1] - limit) < ROUNDING
        if own[number - 1] > limit or (kind != "similarity" and own[number - 1] == limit):
            exit_number = number
            break
    label = first_best(logits[exit_number - 1])
    score = -math.inf if held else (own[exit_number - 1] - bonus) / 0.9
    return Outcome(exit_number, {label}, score, unsure)


def fixed_exit(logits, signals, *, exit) -> Outcome:
    return Outcome(exit, {first_best(logits[exit - 1])}, None)


def final(logits, signals) -> Outcome:
    return Outcome(len(logits), {first_best(logits[-1])}, None)


def as_list(thresholds: Any, num_exits: int) -> list[Any]:
    return thresholds if isinstance(thresholds, list) else [thresholds] * (num_exits - 1)


def as_fraction(value: float) -> Fraction:
    """The number that a person means who writes a short decimal: 2 / 3 votes pass 0.6, 3 / 5 do not."""
    return Fraction(value).limit_denominator(10**6)
