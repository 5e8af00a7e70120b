"""The paper's threshold strategies against counting with loops, and its guarantee against a counterexample."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.thresholds import BestOnValidation, ErrorRate, FixedThresholds, ScoreTable
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.exits.policies import Beem, Entropy, ExitPolicy, MaxProbability
from beem_plugin.exits.threshold_strategy import ThresholdGrid
from tests.exits.random_traces import random_trace

from .thresholds.tables import make_trace


def random_table(rng: random.Random, **fields: Any) -> ScoreTable:
    """Scores in steps of 1/4, so that they tie; deeper exits are right more often."""
    samples, exits, labels = rng.randint(1, 60), rng.randint(1, 6), rng.choice([2, 3])
    truth = [rng.randrange(labels) for _ in range(samples)]
    skill = sorted(rng.random() for _ in range(exits))
    predictions = [
        [label if rng.random() < 0.3 + 0.7 * skill[i] else rng.randrange(labels) for i in range(exits)]
        for label in truth
    ]
    scores = [[rng.randint(-2, 14) / 4 for _ in range(exits)] for _ in range(samples)]
    return ScoreTable(
        scores=torch.tensor(scores, dtype=torch.float64),
        predictions=torch.tensor(predictions),
        confidences=torch.tensor([[rng.randint(2, 8) / 8 for _ in range(exits)] for _ in range(samples)]).double(),
        labels=torch.tensor(truth),
        exit_layers=list(range(1, exits + 1)),
        higher_is_more_confident=fields.pop("higher_is_more_confident", rng.random() < 0.5),
        strict=fields.pop("strict", rng.random() < 0.5),
        **fields,
    )


def leaves(table: ScoreTable, score: float, threshold: float) -> bool:
    return score > threshold if table.strict else score >= threshold


def oriented(table: ScoreTable, grid: list[Any]) -> list[float]:
    sign = 1 if table.higher_is_more_confident else -1
    return sorted({math.inf if value == "never" else sign * value for value in grid})


def solve_with_loops(
    table: ScoreTable,
    grid: list[Any] | str,
    counting: str = "sequential",
    constraint: str = "final_error",
    min_support: int = 10,
    monotone: bool = False,
    slack: float = 0.0,
    error: float | None = None,
    statistic: str = "score",
) -> list[float]:
    """Equation 4, one exit after the other, one candidate after the other, one sample after the other. Oriented."""
    scores = (table.scores if statistic == "score" else table.confidences).tolist()
    own = table.scores.tolist()
    predictions, labels = table.predictions.tolist(), table.labels.tolist()
    samples, exits = len(labels), table.num_exits
    p = sum(predictions[k][-1] != labels[k] for k in range(samples)) / samples if error is None else error
    gone: set[int] = set()
    chosen = []
    for t in range(exits - 1):
        counted = [k for k in range(samples) if counting == "marginal" or k not in gone]
        if isinstance(grid, str):
            # Every set of samples that some threshold lets leave: one threshold just below each score seen.
            candidates = sorted({scores[k][t] - (1e-3 if table.strict else 0) for k in counted}) + [math.inf]
        else:
            candidates = oriented(table, grid)
        verdicts: list[tuple[float, bool, bool]] = []  # threshold, enough support, satisfied
        for alpha in candidates:
            stop = [k for k in counted if leaves(table, scores[k][t], alpha)]
            wrong = sum(predictions[k][t] != labels[k] for k in stop)
            final_wrong = sum(predictions[k][-1] != labels[k] for k in stop)
            bound = p * len(stop) if constraint == "final_error" else final_wrong
            verdicts.append((alpha, len(stop) >= min_support, wrong <= bound + slack * len(stop) + 1e-9))
        feasible = []
        for index, (alpha, supported, satisfied) in enumerate(verdicts):
            larger = [ok for _, enough, ok in verdicts[index + 1 :] if enough]
            if supported and satisfied and (not monotone or all(larger)):
                feasible.append(alpha)
        chosen.append(min(feasible, default=math.inf))
        gone |= {k for k in range(samples) if leaves(table, own[k][t], chosen[-1])}
    return chosen


GRIDS: list[Any] = [
    [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, "never"],
    [0.25, 0.75],
    [1.0],
    ["never"],
    [3.0, 0.5, 0.5, -0.25],
]


def random_options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {
        "counting": rng.choice(["sequential", "marginal"]),
        "constraint": rng.choice(["final_error", "same_samples"]),
        "min_support": rng.choice([1, 2, 5, 10]),
        "monotone": rng.random() < 0.4,
        "slack": rng.choice([0.0, 0.0, 0.05, 0.2]),
    }
    if options["constraint"] == "final_error" and rng.random() < 0.3:
        options["error"] = rng.choice([0.0, 0.1, 0.25, 1.0])
    return options


def test_error_rate_equals_counting_with_loops():
    rng = random.Random("error rate")
    fitted = 0
    for _ in range(1500):
        table, options, grid = random_table(rng), random_options(rng), rng.choice(GRIDS)
        if table.higher_is_more_confident and rng.random() < 0.3:
            options["statistic"] = "confidence"
        found = ErrorRate(grid=grid, **options).fit(table).thresholds
        assert found == solve_with_loops(table, grid, **options), (grid, options)
        fitted += sum(math.isfinite(value) for value in found)
    assert fitted > 500


def test_observed_scores_give_the_exact_minimum():
    rng = random.Random("observed")
    for _ in range(500):
        table, options = random_table(rng), random_options(rng)
        found = ErrorRate(grid="observed", **options).fit(table).thresholds
        expected = solve_with_loops(table, "observed", **options)
        for column, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            scores = table.scores[:, column].tolist()
            assert [leaves(table, s, ours) for s in scores] == [leaves(table, s, theirs) for s in scores]
        if not table.strict:
            assert found == expected


def test_no_finer_grid_beats_the_observed_scores():
    rng = random.Random("finer")
    fine = [value / 16 for value in range(-16, 64)] + ["never"]
    for _ in range(100):
        table, options = random_table(rng, higher_is_more_confident=True, strict=False), random_options(rng)
        options["monotone"] = False
        exact = ErrorRate(grid="observed", **options).fit(table)
        gridded = ErrorRate(grid=fine, **options).fit(table)
        assert torch.equal(table.exits(exact.thresholds), table.exits(gridded.thresholds))


def test_quantiles_of_the_scores_are_scores_that_were_seen():
    table = random_table(random.Random(11), higher_is_more_confident=True, strict=False)
    fit = ErrorRate(grid=5, min_support=1, error=1.0).fit(table)
    for column, value in enumerate(fit.thresholds):
        assert value in table.scores[:, column].tolist() or value == math.inf
    assert fit.thresholds[0] == float(table.scores[:, 0].min())  # any error is allowed: all samples exit at exit 1
    values = ThresholdGrid(5).candidates(table, table.scores[:, 0])
    assert len(values) <= 6 and values[-1] == math.inf and set(values[:-1]) <= set(table.scores[:, 0].tolist())
    assert values[0] == table.scores[:, 0].min() and values[-2] == table.scores[:, 0].max()


def test_same_samples_never_errs_more_than_the_last_exit():
    rng = random.Random("guarantee")
    for _ in range(300):
        table = random_table(rng)
        grid = rng.choice([*GRIDS, "observed"])
        fit = ErrorRate(grid=grid, constraint="same_samples", min_support=1).fit(table)
        predictions = table.predictions_at(table.exits(fit.thresholds))
        assert int((predictions != table.labels).sum()) <= int(table.wrong[:, -1].sum())


def test_lists_as_long_as_the_network_less_one():
    rng = random.Random("lengths")
    for _ in range(20):
        table = random_table(rng)
        for strategy in (ErrorRate(min_support=1), BestOnValidation(grid=[0.5]), FixedThresholds(0.5)):
            assert len(strategy.fit(table).thresholds) == table.num_exits - 1


# --- the counterexample to the paper's guarantee --------------------------------------------------


def easy_and_hard() -> ExitTrace:
    """
    50 easy samples, on which the last exit never errs, and 50 hard ones, on which it errs 10 times: p = 10 %. Exit 1 is
    sure of the easy ones and errs on 4 of them, 8 %, which is less than p.
    """
    truth = torch.zeros(100, dtype=torch.int64)
    first, last = truth.clone(), truth.clone()
    first[:4], last[50:60] = 1, 1
    confident = torch.where(torch.arange(100) < 50, 8.0, 0.5)
    logits = torch.zeros(100, 2, 2)
    logits[torch.arange(100), 0, first] = confident
    logits[torch.arange(100), 1, last] = 8.0
    return ExitTrace(logits, truth)


def calibrated_error(constraint: str) -> tuple[float, list[str]]:
    policy = Beem(weights=[1.0, 1.0], thresholds=ErrorRate(grid=[0.9, "never"], constraint=constraint))
    trace = easy_and_hard()
    report = policy.calibrate(trace)
    decisions = replay(policy, trace)
    error = float((decisions.predictions != trace.labels).double().mean())
    assert report.error == pytest.approx(error)
    assert report.final_error == pytest.approx(0.10)
    return error, report.warnings


def test_the_printed_constraint_passes_and_the_overall_error_rises_above_the_last_exits():
    error, warnings = calibrated_error("final_error")
    assert error == pytest.approx(0.14)
    (warning,) = (warning for warning in warnings if "exceeds" in warning)
    # 4 samples of 100 are wrong at exit 1 alone: sqrt(0.04 * 0.96 / 99) = 0.0197.
    assert "0.1400 exceeds the last exit's error 0.1000 on the calibration data" in warning
    assert warning.endswith("(by 0.0400, standard error 0.0197)")


def test_the_excess_of_the_error_has_a_standard_error() -> None:
    # Of 100 samples that are right at the last exit, these are lost at the first: s^2 = 100 / 99 m (1 - m), over 100.
    for lost, error, noise in ((3, "0.0171", "; within noise"), (5, "0.0219", "")):
        logits = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).repeat(100, 1, 1)
        logits[:lost, 0] = logits[:lost, 0].flip(-1)
        policy = MaxProbability(thresholds=0.5)
        warning = policy.calibrate(ExitTrace(logits, torch.zeros(100, dtype=torch.int64))).warnings[0]
        assert warning.endswith(f"(by 0.0{lost}00, standard error {error}{noise})")


def test_the_constraint_on_the_same_samples_keeps_the_error_at_the_last_exits():
    error, warnings = calibrated_error("same_samples")
    assert error == pytest.approx(0.10)
    assert not any("exceeds" in warning for warning in warnings)


# --- by hand --------------------------------------------------------------------------------------


def small_table(scores: list[float], right: list[bool], final_right: list[bool], **fields: Any) -> ScoreTable:
    predictions = torch.tensor([[int(not a), int(not b)] for a, b in zip(right, final_right, strict=True)])
    both = torch.tensor([[score, 0.0] for score in scores], dtype=torch.float64)
    return ScoreTable(
        scores=both,
        predictions=predictions,
        confidences=both,
        labels=torch.zeros(len(scores), dtype=torch.int64),
        exit_layers=[1, 2],
        higher_is_more_confident=fields.get("higher_is_more_confident", True),
        strict=fields.get("strict", False),
    )


def test_a_rate_equal_to_p_is_allowed():
    # Of the last exit's ten answers three are wrong, of exit 1's three of ten as well: q = p = 0.3 exactly.
    right = [False] * 3 + [True] * 7
    table = small_table([1.0] * 10, right, right)
    assert ErrorRate(grid=[1.0], min_support=10).fit(table).thresholds == [1.0]
    assert ErrorRate(grid=[1.0], min_support=11).fit(table).thresholds == [math.inf]


def test_a_lucky_bin_is_taken_unless_monotone():
    scores = [3.0, 3.0, 2.0, 2.0, 1.0, 1.0]
    right = [False, True, True, True, True, True]
    table = small_table(scores, right, [True, True, True, True, True, False])
    # errors of those who leave: at 3.0 1 of 2, at 2.0 1 of 4, at 1.0 1 of 6; p = 1/6
    assert ErrorRate(grid=[1.0, 2.0, 3.0], min_support=1).fit(table).thresholds == [1.0]
    assert ErrorRate(grid=[1.0, 2.0, 3.0], min_support=1, monotone=True).fit(table).thresholds == [math.inf]
    assert ErrorRate(grid=[1.0, 2.0, 3.0], min_support=3, monotone=True).fit(table).thresholds == [math.inf]
    assert ErrorRate(grid=[1.0, 2.0, 3.0], min_support=5, monotone=True).fit(table).thresholds == [1.0]


def test_a_strict_rule_gets_a_threshold_that_its_own_scores_pass():
    rng = random.Random("strict")
    for _ in range(20):
        trace = random_trace(rng, num_exits=3, num_labels=3)
        if not trace.has_labels:
            continue
        policy = Entropy(thresholds=ErrorRate(grid="observed", error=1.0, min_support=1))
        policy.calibrate(trace)
        assert replay(policy, trace).exits.tolist() == [1] * len(trace)


def test_entropy_thresholds_are_in_nats_and_reported_so():
    logits = torch.zeros(20, 2, 2)
    logits[:, :, 0] = torch.linspace(0, 4, 20)[:, None]
    trace = ExitTrace(logits, torch.zeros(20, dtype=torch.int64))
    policy = Entropy(thresholds=ErrorRate(grid=[0.1, 0.3, 0.5], min_support=1))
    report = policy.calibrate(trace)
    assert report.thresholds == [0.5]  # no errors: the most permissive
    assert policy.to_config()["thresholds"] == [0.5]


def test_counting_by_confidence_is_refused_for_entropies():
    trace = easy_and_hard()
    policy = Entropy(thresholds=ErrorRate(statistic="confidence"))
    with pytest.raises(ConfigurationError, match="statistic"):
        policy.calibrate(trace)


def test_no_sample_exits_before_min_exit():
    rng = random.Random("min exit")
    for _ in range(30):
        trace = random_trace(rng, num_exits=5, num_labels=2)
        if not trace.has_labels:
            continue
        policy = MaxProbability(thresholds=ErrorRate(grid="observed", error=1.0, min_support=1), min_exit=3)
        report = policy.calibrate(trace)
        assert report.exit_histogram[:2] == [0, 0]
        assert report.exit_histogram[2] == len(trace)


# --- best_on_validation ---------------------------------------------------------------------------


def best_with_loops(table: ScoreTable, grid: list[Any]) -> float:
    """One threshold for all exits: the most accurate, of several the most permissive. Oriented."""
    best, best_right = math.inf, -1
    for alpha in oriented(table, grid):
        right = 0
        for k in range(len(table)):
            at = next((t for t in range(table.num_exits - 1) if leaves(table, float(table.scores[k, t]), alpha)), -1)
            right += int(table.predictions[k, at] == table.labels[k])
        if right > best_right:
            best, best_right = alpha, right
    return best


def test_best_on_validation_equals_trying_every_threshold():
    rng = random.Random("best")
    for _ in range(300):
        table, grid = random_table(rng), rng.choice(GRIDS)
        expected = [best_with_loops(table, grid)] * (table.num_exits - 1)
        assert BestOnValidation(grid=grid).fit(table).thresholds == expected


def test_of_equally_good_thresholds_the_smallest_is_taken():
    table = small_table([1.0, 1.0], [True, True], [True, True])
    assert BestOnValidation(grid=[1.5, 0.9, 0.3]).fit(table).thresholds == [0.3]
    assert BestOnValidation(grid=[0.3, 0.9, 1.5]).fit(table).thresholds == [0.3]
    low_is_sure = small_table([-1.0, -1.0], [True, True], [True, True], higher_is_more_confident=False)
    assert BestOnValidation(grid=[0.5, 1.0, 2.0]).fit(low_is_sure).thresholds == [-2.0]


def test_the_tasks_metric_decides_not_its_accuracy():
    # 8 samples of label 0, 2 of label 1. Exit 1 says 0 throughout: accuracy 0.8, correlation 0. The last exit finds
    # both of label 1 and is wrong on three of label 0: accuracy 0.7, correlation above 0.
    labels = torch.tensor([0] * 8 + [1] * 2)
    last = torch.tensor([1] * 3 + [0] * 5 + [1] * 2)
    scores = torch.ones(10, 2, dtype=torch.float64)
    table = ScoreTable(
        scores=scores,
        predictions=torch.stack([torch.zeros_like(labels), last], 1),
        confidences=scores,
        labels=labels,
        exit_layers=[1, 2],
        higher_is_more_confident=True,
        strict=False,
        metric="matthews",
    )
    assert BestOnValidation(grid=[0.5, 2.0]).fit(table).thresholds == [2.0]
    assert BestOnValidation(grid=[0.5, 2.0], metric="accuracy").fit(table).thresholds == [0.5]


def test_the_papers_grid_is_the_default_of_beem():
    trace = easy_and_hard()
    report = Beem(weights="cost", thresholds="best_on_validation").calibrate(trace)
    assert report.thresholds[0] in (0.3, 0.6, 0.9, 1.2, 1.5)


def test_only_beem_has_the_papers_grid_by_default() -> None:
    trace = make_trace(800)
    beem = ExitPolicy.from_params({"type": "beem", "weights": "cost", "thresholds": {"type": "error_rate"}})
    allowed = {0.5 * k for k in range(1, 11)} | {"never"}
    assert set(beem.calibrate(trace).thresholds or []) <= allowed
    plain = ExitPolicy.from_params({"type": "max_probability", "thresholds": {"type": "error_rate"}})
    found = plain.calibrate(trace).thresholds or []
    seen = set(trace.logits.double().softmax(-1).amax(-1).flatten().tolist())
    assert any(value != "never" for value in found)
    assert all(value == "never" or min(abs(value - score) for score in seen) < 1e-12 for value in found)  # type: ignore[operator]


@pytest.mark.parametrize("policy", ["max_probability", "entropy", "margin", "beem"])
@pytest.mark.parametrize("strategy", ["error_rate", "best_on_validation"])
def test_every_rule_can_be_calibrated_by_name(policy: str, strategy: str) -> None:
    report = ExitPolicy.from_params({"type": policy, "thresholds": strategy}).calibrate(make_trace(400))
    assert report.error is not None and report.layer_speedup >= 1


def test_fixed_thresholds_are_resolved_exit_by_exit():
    assert FixedThresholds(0.5).resolve(4) == [0.5, 0.5, 0.5]
    assert FixedThresholds("never").resolve(3) == [None, None]
    assert FixedThresholds([1, "never"]).resolve(3) == [1.0, None]
    assert FixedThresholds([]).resolve(1) == []
    with pytest.raises(ConfigurationError, match="a list of 2, allowed: 3 entries"):
        FixedThresholds([1, 2]).resolve(4)


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.5x", None, True, [0.5, math.nan], [[0.5]]])
def test_what_is_no_threshold_is_refused(value):
    with pytest.raises(ConfigurationError, match="thresholds"):
        FixedThresholds(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"counting": "both"}, "counting: found 'both'"),
        ({"constraint": "final"}, "constraint: found 'final', allowed: final_error"),
        ({"statistic": "entropy"}, "statistic: found 'entropy'"),
        ({"min_support": 0}, "min_support: found 0"),
        ({"error": 1.5}, "error: found 1.5"),
        ({"error": 0.1, "constraint": "same_samples"}, "only with constraint"),
        ({"grid": "all"}, "grid: found 'all'"),
        ({"grid": 0}, "grid: found 0"),
        ({"grid": []}, "empty list"),
        ({"grid": [0.5, "nevr"]}, "grid.1: found 'nevr'"),
    ],
)
def test_a_wrong_option_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ErrorRate(**options)


def test_an_unknown_metric_is_refused():
    with pytest.raises(ConfigurationError, match="metric: found 'acuracy', allowed: accuracy"):
        BestOnValidation(metric="acuracy")


@pytest.mark.parametrize("strategy", ["error_rate", "best_on_validation"])
@pytest.mark.parametrize("rows", [[], [0, 1]])
def test_unlabelled_or_empty_calibration_data_are_refused(strategy, rows):
    trace = ExitTrace(torch.zeros(2, 3, 2), torch.tensor([-1, 0])).select(rows)
    policy = ExitPolicy.from_params(Params({"type": "max_probability", "thresholds": strategy}))
    with pytest.raises(ConfigurationError, match="calibration"):
        policy.calibrate(trace)


def test_a_calibrated_policy_does_not_move_to_a_network_of_another_depth():
    policy = MaxProbability(thresholds=ErrorRate(grid="observed", min_support=1))
    policy.calibrate(easy_and_hard())
    with pytest.raises(ConfigurationError, match="calibrated for 2 exits, found a network of 3"):
        policy.bind([1, 2, 3], 2)
