"""The kernels of captured decoding against torch's operations and the policies themselves."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from beem_plugin.decoding import row_attention, word_decision
from beem_plugin.decoding.captured_greedy import CapturedGreedy
from beem_plugin.decoding.row_attention import attend, write
from beem_plugin.decoding.row_norm import add_and_normalise, take_and_normalise
from beem_plugin.decoding.word_decision import RuleMemory
from beem_plugin.decoding.word_rule import word_rule
from beem_plugin.exits.token_signals import TokenSignals
from tests.decoding.test_captured_greedy import RULES as CAPTION_RULES
from tests.decoding.test_captured_greedy import OnTheSpot, decoded, run, same
from tests.tiny_captioner import policy, settled, settled_images

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(
    row_attention.triton is None or not (HAS_GPU or INTERPRETED), reason="needs Triton and a GPU or its interpreter"
)

RULES: list[dict[str, Any]] = [
    {"type": "final"},
    {"type": "fixed_exit", "exit": 2},
    {"type": "max_probability", "thresholds": 0.3},
    {"type": "margin", "thresholds": [0.1, "never", 0.2]},
    {"type": "entropy", "thresholds": 2.0},
    {"type": "entropy", "thresholds": 0.3, "normalized": True},
    {"type": "patience", "patience": 1},
    {"type": "beem", "weights": [0.5, 1.0, 0.25, 1.0], "thresholds": 0.3},
    {"type": "beem", "weights": [0.5, 1.0, 0.25, 1.0], "thresholds": 0.3, "on_disagreement": "zero"},
    {"type": "decaying_threshold", "policy": {"type": "margin", "thresholds": 0.2}, "max_length": 6},
    {
        "type": "decaying_threshold",
        "decay": "mue",
        "policy": {"type": "beem", "weights": [0.5, 1.0, 0.25, 1.0], "thresholds": 0.3},
        "max_length": 6,
    },
]


def close(found: Tensor, expected: Tensor, dtype: torch.dtype = torch.float32) -> None:
    torch.testing.assert_close(
        found, expected, **({"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 5e-3, "rtol": 5e-3})
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("heads", "size", "room"), [(6, 64, 20), (2, 16, 12), (4, 8, 77), (3, 12, 130), (12, 64, 257)])
def test_attention_where_keys_lie(heads: int, size: int, room: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    keys, values = (torch.randn(5, heads, room, size, device=DEVICE, dtype=dtype) for _ in range(2))
    projected = torch.randn(7, 3 * heads * size, device=DEVICE, dtype=dtype)
    query, key, value = projected.split(heads * size, dim=-1)
    rows = torch.tensor([4, 0, 4, 2, 1, 1, 3], device=DEVICE)
    positions = torch.tensor([room - 1, 0, 5, 7, 2, 1, room // 2], device=DEVICE)
    written = [(keys.clone(), values.clone()) for _ in range(2)]
    for stored, use_kernel in zip(written, (True, False), strict=True):
        write(key, value, *stored, rows, positions, use_kernel)
    assert torch.equal(written[0][0], written[1][0]) and torch.equal(written[0][1], written[1][1])
    assert not torch.equal(written[0][0], keys)
    for where in (positions, None):
        found = attend(query, *written[0], rows, where, 0.3, True)
        close(found, attend(query, *written[0], rows, where, 0.3, False), dtype)


@pytest.mark.parametrize("words", [50, 4096, 9001])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_decisions_are_those_of_the_policy(rule: dict[str, Any], words: int) -> None:
    torch.manual_seed(words)
    exits, rows = 4, torch.tensor([3, 5, 0, 1], device=DEVICE)
    made = policy(**rule)
    made.bind([1, 2, 3, 4], words)
    known = word_rule(made)
    assert known is not None
    memory = RuleMemory(known, 7, 6, DEVICE)
    positions = torch.tensor([0, 2, 5, 3], device=DEVICE)
    tokens = torch.zeros(7, dtype=torch.int64, device=DEVICE)
    answers = torch.full((4, 3), float("nan"), dtype=torch.float64, device=DEVICE)
    seen = set()
    for _ in range(3):  # words, one after the other: nothing may be remembered from the one before
        start = torch.randn(4, words, device=DEVICE)
        start[torch.arange(4), torch.randint(words, (4,))] += torch.tensor([1.0, 6.0, 9.0, 13.0], device=DEVICE)
        state = made.start(4, exits, DEVICE)
        for exit_number in range(1, exits + 1):
            logits = start + torch.randn_like(start) * (2 if exit_number == 2 else 0.1)
            is_last = exit_number == exits
            memory.decide(exit_number, logits, rows, positions, tokens, answers, exit_number == 1, is_last)
            extra = {"position": lambda: positions.float()}
            signals = TokenSignals(4, DEVICE, lambda logits=logits: logits, extra=extra)  # type: ignore[misc]
            leaves = torch.ones(4, dtype=torch.bool)
            if not is_last:
                leaves, state = made.step(exit_number, signals, state)
            assert answers[:, 0].bool().tolist() == leaves.tolist()
            seen |= set(leaves.tolist())
            assert answers[:, 1].long().tolist() == tokens[rows].tolist() == logits.argmax(-1).tolist()
            close(answers[:, 2].float(), logits.log_softmax(-1).amax(-1))
            score = state["own_score"] if "own_score" in state else made.score(state)
            if score is not None and not is_last:
                close(memory.score[rows].float(), score.float())
    assert seen == {True, False}


def test_the_first_of_equal_words_is_said() -> None:
    made = policy(type="final")
    made.bind([1, 2], 9000)
    known = word_rule(made)
    assert known is not None
    logits = torch.zeros(1, 9000, device=DEVICE)
    logits[0, [7, 5000]] = 1.0
    tokens, answers = torch.zeros(1, dtype=torch.int64, device=DEVICE), torch.zeros(1, 3, device=DEVICE).double()
    nothing = torch.zeros_like(tokens)
    RuleMemory(known, 1, 6, DEVICE).decide(2, logits, nothing, nothing, tokens, answers, True, True)
    assert tokens.tolist() == [7] and word_decision.ANSWER == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [32, 100, 384])
def test_sums_and_their_normalisation(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden, update = (torch.randn(5, size, device=DEVICE, dtype=dtype) for _ in range(2))
    norm = torch.nn.LayerNorm(size).to(DEVICE, dtype)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    with torch.no_grad():
        total, said = add_and_normalise(hidden, update, norm, True)
        assert torch.equal(total, hidden + update)
        close(said, norm(total), dtype)
        kept, places = torch.zeros(9, size, device=DEVICE, dtype=dtype), torch.tensor([8, 0, 3, 4, 1], device=DEVICE)
        again = add_and_normalise(hidden, update, norm, True, kept, places)
        assert torch.equal(again[0], total) and torch.equal(again[1], said)
        assert torch.equal(kept[places], total) and not kept[[2, 5, 6, 7]].any()
        taken = take_and_normalise(kept, places.flip(0), norm, True)
        assert torch.equal(taken[0], total.flip(0)) and torch.equal(taken[1], said.flip(0))


@pytest.mark.parametrize(
    ("head", "type_of_rule"),
    [("tied", "beem"), ("tied", "decaying_threshold"), ("tied", "similarity"), ("untied", "patience")],
)
def test_captions_by_kernels(monkeypatch: pytest.MonkeyPatch, head: str, type_of_rule: str) -> None:
    rule = next(rule for rule in CAPTION_RULES if rule["type"] == type_of_rule)
    monkeypatch.setattr(CapturedGreedy, "worth_capturing", 1)
    monkeypatch.setattr(CapturedGreedy, "mixes_depths", False)
    monkeypatch.setattr(row_attention, "serves", lambda tensor: True)
    model, pixels = settled(decoder={"head": head}).to(DEVICE), settled_images(4).to(DEVICE, torch.float32)
    for skipped in ("propagate", "recompute"):
        found, macs = run(CapturedGreedy(OnTheSpot), model, pixels, policy(**rule), skipped, 6)
        expected = decoded(model, pixels, policy(**rule), skipped, 6)
        same(found, expected.captions, 1e-3)  # as far as float32 and float64 are apart on this network
        assert macs.heads == pytest.approx(expected.macs.heads)
