from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import beem_plugin.exits.policies  # noqa: F401
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.token_trace import TokenTrace
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.token_signals import SUMMARIES, TokenSummary

TOKENS, EXITS, WORDS = 120, 4, 11


def pair(seed: int = 0) -> tuple[TokenTrace, ExitTrace]:
    """The same exits as summaries and with all their logits."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, WORDS, (TOKENS,), generator=generator)
    logits = torch.randn(TOKENS, EXITS, WORDS, generator=generator)
    logits += 2.0 * torch.arange(1, EXITS + 1).view(1, -1, 1) * torch.nn.functional.one_hot(labels, WORDS).unsqueeze(1)
    similarity = torch.rand(TOKENS, EXITS, generator=generator)
    summaries = [TokenSummary.of(logits[:, number]) for number in range(EXITS)]
    columns = {name: torch.stack([getattr(summary, name) for summary in summaries], 1) for name in SUMMARIES}
    position = torch.arange(TOKENS) % 10
    trace = TokenTrace(
        **columns,
        target=labels,
        caption=torch.arange(TOKENS) // 10,
        position=position,
        num_words=WORDS,
        signals={"similarity": similarity},
        meta={"source": "made up"},
    )
    along = position.float().unsqueeze(1).expand(-1, EXITS)
    return trace, ExitTrace(logits, labels, signals={"similarity": similarity, "position": along})


def test_both_are_shown_in_one_line() -> None:
    tokens, whole = pair()
    assert repr(tokens) == f"TokenTrace({TOKENS} samples, {EXITS} exits, {WORDS} labels, 'made up')"
    assert repr(whole) == f"ExitTrace({TOKENS} samples, {EXITS} exits, {WORDS} labels, None)"


POLICIES: list[dict[str, Any]] = [
    {"type": "max_probability", "thresholds": 0.7},
    {"type": "margin", "thresholds": 0.4},
    {"type": "entropy", "thresholds": 0.3, "normalized": True},
    {"type": "patience", "patience": 2},
    {"type": "confident_patience", "patience": 2, "entropy_threshold": 0.5},
    {"type": "similarity", "thresholds": 0.6},
    {"type": "beem", "weights": "accuracy", "thresholds": {"type": "error_rate", "min_support": 3}},
    {"type": "beem", "weights": "cost", "thresholds": "best_on_validation"},
    {"type": "max_probability", "thresholds": {"type": "budget", "speedup": 1.5}},
    {"type": "decaying_threshold", "policy": {"type": "margin", "thresholds": "error_rate"}, "max_length": 10},
    {"type": "decaying_threshold", "policy": {"type": "similarity", "thresholds": 0.5}, "decay": "mue"},
    {"type": "fixed_exit", "exit": 2},
]


@pytest.mark.parametrize("config", POLICIES, ids=str)
def test_policies_calibrate_and_decide_on_summaries_as_on_logits(config: dict[str, Any]) -> None:
    trace, full = pair()
    policies = [ExitPolicy.from_params(config) for _ in range(2)]
    reports = [policy.calibrate(kind) for policy, kind in zip(policies, (trace, full))]
    decisions = [replay(policy, kind) for policy, kind in zip(policies, (trace, full))]
    assert torch.equal(decisions[0].exits, decisions[1].exits)
    assert torch.equal(decisions[0].predictions, decisions[1].predictions)
    assert reports[0].exit_histogram == reports[1].exit_histogram and reports[0].error == reports[1].error
    rebuilt = ExitPolicy.from_params(policies[0].to_config())
    assert torch.equal(replay(rebuilt, trace).exits, decisions[0].exits)


@pytest.mark.parametrize(
    "config",
    [
        {"type": "voting", "thresholds": 0.5},
        {"type": "cascaded_ensemble", "thresholds": 0.5},
        {"type": "max_probability", "thresholds": 0.5, "fallback": "most_confident"},
        {"type": "confident_patience", "patience": 1, "entropy_threshold": 0.5, "output": "mean"},
    ],
    ids=str,
)
def test_policies_that_need_all_words_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="needs the probabilities of all labels"):
        ExitPolicy.from_params(config).calibrate(pair()[0])


def test_what_counts_as_right_is_chosen() -> None:
    trace, _ = pair()
    assert torch.equal(trace.labels, trace.target)
    agreement = trace.judged_by("last_exit")
    assert torch.equal(agreement.labels, trace.top_token[:, -1])
    report = ExitPolicy.from_params(
        {"type": "max_probability", "thresholds": {"type": "error_rate", "slack": 0.05}}
    ).calibrate(agreement)
    assert report.final_error == 0 and report.error is not None and report.error <= 0.1
    with pytest.raises(ConfigurationError, match="allowed: last_exit, reference"):
        trace.judged_by("teacher")


def test_save_and_load(tmp_path: Path) -> None:
    trace, _ = pair()
    trace = trace.judged_by("last_exit")
    trace.save(tmp_path / "trace.npz")
    loaded = ExitTrace.load(tmp_path / "trace.npz")
    assert isinstance(loaded, TokenTrace) and loaded.same_data(trace) and not loaded.same_data(pair()[1])
    for name in ("target", "caption", "position", "labels"):
        assert torch.equal(getattr(loaded, name), getattr(trace, name))
    assert (
        loaded.meta == trace.meta and loaded.num_labels == WORDS and set(loaded.signals) == {"similarity", "position"}
    )
    with np.load(tmp_path / "trace.npz") as arrays:
        names = {"top_token", "top_probability", "entropy", "margin", "similarity", "target", "caption", "position"}
        assert names < set(arrays.files)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    pair()[0].save(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    for change, words in (
        ({"entropy": None}, "lacks \\['entropy'\\]"),
        ({"entropy": arrays["entropy"][:5]}, "entropy has shape \\(5, 4\\), allowed: \\(120, 4\\)"),
        ({"margin": np.full_like(arrays["margin"], np.nan)}, "margin of sample 0 at exit 1 are not finite"),
        ({"meta": np.array("{}")}, "num_words"),
        ({"target": arrays["target"] + 100}, "outside the vocabulary of 11"),
    ):
        wrong = {name: value for name, value in {**arrays, **change}.items() if value is not None}
        np.savez(path, **wrong)
        with pytest.raises(DataError, match=words) as error:
            ExitTrace.load(path)
        assert str(path) in str(error.value)


def test_selecting_words() -> None:
    trace, _ = pair()
    some = trace.select(trace.caption == 3)
    assert len(some) == 10 and some.position.tolist() == list(range(10)) and some.num_exits == EXITS


def test_the_threshold_falls_along_the_caption() -> None:
    """CALM, by hand: 0.9 lambda + 0.1 exp(-4 t / N)."""
    trace, _ = pair()
    policy = ExitPolicy.from_params(
        {"type": "decaying_threshold", "policy": {"type": "margin", "thresholds": 0.6}, "max_length": 10}
    )
    exits = replay(policy, trace).exits
    for row in range(len(trace)):
        threshold = 0.9 * 0.6 + 0.1 * math.exp(-4 * int(trace.position[row]) / 10)
        passing = [number + 1 for number in range(EXITS - 1) if float(trace.margin[row, number]) >= threshold]
        assert int(exits[row]) == (passing or [EXITS])[0]


def test_no_token_exits_in_the_first_third_of_a_caption_under_mue() -> None:
    trace, _ = pair()
    config = {"type": "decaying_threshold", "policy": {"type": "similarity", "thresholds": 0.2}, "decay": "mue"}
    exits = replay(ExitPolicy.from_params({**config, "max_length": 9}), trace).exits
    for row in range(len(trace)):
        t = int(trace.position[row])
        threshold = math.inf if t < 3 else 0.9 * 0.2 + 0.1 * math.exp(-(t + 1) / 10)
        passing = [
            number + 1 for number in range(EXITS - 1) if float(trace.signals["similarity"][row, number]) > threshold
        ]
        assert int(exits[row]) == (passing or [EXITS])[0]


def test_only_rules_with_a_rising_score_can_decay() -> None:
    for inner in ({"type": "entropy", "thresholds": 0.5}, {"type": "patience", "patience": 1}):
        with pytest.raises(ConfigurationError, match="allowed: a policy whose score must exceed"):
            ExitPolicy.from_params({"type": "decaying_threshold", "policy": inner})
