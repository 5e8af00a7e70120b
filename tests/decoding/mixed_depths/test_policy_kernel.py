"""The policy kernel against the policies' own steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from beem_plugin.decoding.mixed_depths.policy_kernel import TokenPolicyKernel
from beem_plugin.execution.compiled.step_trace import UnsupportedStep
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from tests.tiny_captioner import policy

pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WEIGHTS = [0.5, 1.0, 0.25, 1.0]
RULES: list[dict[str, Any]] = [
    {"type": "max_probability", "thresholds": 0.3},
    {"type": "margin", "thresholds": [0.1, "never", 0.2]},
    {"type": "entropy", "thresholds": 0.3, "normalized": True},
    {"type": "similarity", "thresholds": 0.5},
    {"type": "patience", "patience": 1},
    {"type": "confident_patience", "patience": 2, "entropy_threshold": 0.3},
    {"type": "beem", "weights": WEIGHTS, "thresholds": 0.3},
    {"type": "beem", "weights": WEIGHTS, "thresholds": 0.3, "on_disagreement": "zero", "min_exit": 2},
    {
        "type": "decaying_threshold",
        "decay": "mue",
        "policy": {"type": "beem", "weights": WEIGHTS, "thresholds": 0.3},
        "max_length": 6,
    },
]


class MeanConfidence(ExitPolicy):
    """A user's rule: the mean confidence of all exits so far, over a bar that falls with the exit."""

    def start(self, batch_size: int, num_exits: int, device: torch.device | str = "cpu") -> ExitState:
        return ExitState(total=self.zeros(batch_size, device))

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        total = state["total"] + signals.confidence
        return total / exit_number > 0.6 - 0.1 * exit_number, ExitState(total=total)


class OnTheHost(MeanConfidence):
    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        if float(signals.confidence.max()) > 0.5:
            return signals.flags(True), state
        return super().step(exit_number, signals, state)


def signals(rows: int = 6) -> dict[str, Tensor]:
    made = {"top_token": torch.zeros(rows, dtype=torch.int64), "position": torch.zeros(rows, dtype=torch.int32)}
    for name in ("top_probability", "entropy", "margin"):
        made[name] = torch.zeros(rows, dtype=torch.float64)
    made["similarity"] = torch.zeros(rows)
    return {name: value.to(DEVICE) for name, value in made.items()}


@pytest.mark.parametrize("rule", [*RULES, None], ids=str)
def test_rows_at_different_exits_are_decided_as_by_the_policy(rule: dict[str, Any] | None) -> None:
    made = MeanConfidence() if rule is None else policy(**rule)
    made.bind([1, 2, 3, 4], 50)
    given = signals()
    exits = [number for number in (1, 2, 3) if made.needs(number)] + [4]
    kernel, reference = (TokenPolicyKernel(made, exits, given, use_kernel) for use_kernel in (True, False))
    generator = torch.Generator().manual_seed(0)
    at = torch.zeros(6, dtype=torch.int64)  # each row goes on to its next exit, or from the last one to a new token
    seen: set[bool] = set()
    for turn in range(12):
        for row, previous in enumerate(at.tolist()):
            later = [number for number in exits if number > previous]
            wait = turn < row and previous == 0  # rows start one after the other
            at[row] = 0 if wait else (later or exits)[0]
        given["top_token"].copy_(torch.randint(0, 2, (6,), generator=generator))
        given["position"].copy_(torch.randint(0, 6, (6,), generator=generator))
        for name in ("top_probability", "entropy", "margin", "similarity"):
            given[name].copy_(torch.rand(6, generator=generator) * (2 if name == "entropy" else 1))
        chosen = (at > 0) & (at < 4)
        found, expected = kernel(at.to(DEVICE)).cpu(), reference(at.to(DEVICE)).cpu()
        assert found[chosen].tolist() == expected[chosen].tolist()
        seen |= set(found[chosen].tolist())
    assert seen == {True, False}


def test_exits_that_differ_in_numbers_share_the_source() -> None:
    sources = set()
    for threshold in (0.3, 0.4):
        made = policy(type="beem", weights=WEIGHTS, thresholds=[threshold, 0.5, 0.6])
        made.bind([1, 2, 3, 4], 50)
        kernel = TokenPolicyKernel(made, [1, 2, 3, 4], signals(), True)
        assert kernel.variants.tolist() == [-1, 0, 1, 1, -1]
        sources.add(id(kernel.kernel))
    assert len(sources) == 1


def test_a_fixed_exit_is_the_last_one() -> None:
    made = policy(type="fixed_exit", exit=2)
    made.bind([1, 2, 3, 4], 50)
    kernel = TokenPolicyKernel(made, [2, 3, 4], signals(), True)
    assert kernel.last_exit == 2 and not kernel.exits and not kernel.reads_logits


@pytest.mark.parametrize(
    "rule", [{"type": "voting", "thresholds": 0.9, "min_exit": 2}, {"type": "cascaded_ensemble", "thresholds": 0.5}, {}]
)
def test_rules_that_need_more_than_a_summary_have_no_kernel(rule: dict[str, Any]) -> None:
    made = policy(**rule) if rule else OnTheHost()
    made.bind([1, 2, 3, 4], 50)
    with pytest.raises(UnsupportedStep):
        TokenPolicyKernel(made, [1, 2, 3, 4], signals(), True)
