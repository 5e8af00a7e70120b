"""
Windows kept by kernels give the answers of windows kept without. Without a GPU they run in Triton's interpreter:

    TRITON_INTERPRET=1 pytest tests/execution/test_fused_window.py
"""

from __future__ import annotations

import os

import pytest
import torch

from beem_plugin.backbones import block_kernels
from beem_plugin.backbones.packed import Packed
from beem_plugin.data.ragged_batch import ragged_batches
from beem_plugin.execution import pool_kernels
from beem_plugin.execution.depth_pools import DepthPools
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.execution.fused_rule import fused_rule
from beem_plugin.execution.fused_window import KernelsDisagree, cut_evenly, window_kernels
from beem_plugin.execution.ledger import Ledger
from beem_plugin.execution.pooled_heads import BatchHeads
from beem_plugin.execution.pooling import compare_kernels, make_up_samples, pool, run_to_end
from beem_plugin.execution.precision import cast_network
from beem_plugin.execution.windows import sorted_windows, windows
from beem_plugin.exits.policies import Beem, Voting
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from tests.backbones.tiny_models import tiny
from tests.execution.worlds import FUSED_POLICIES, WEIGHTS, make_batches, same

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def can_run() -> bool:
    return pool_kernels.triton is not None and (HERE.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")


needs_triton = pytest.mark.skipif(not can_run(), reason="needs Triton, and a GPU or TRITON_INTERPRET=1")


def network(pooling: str = "mean", family: str = "bert") -> MultiExitEncoder:
    torch.manual_seed(2)
    made = MultiExitEncoder(3, tiny(family)).eval()
    with torch.no_grad():
        for head in made.exits:
            head.classifier.weight.mul_(40)
            head.pooler.pooling = pooling
    return made.to(HERE)


@needs_triton
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("tokens, size", [(1, 32), (5, 48), (40, 300)])
@torch.inference_mode()
def test_means(tokens: int, size: int, padded: bool) -> None:
    hidden = torch.randn(4, tokens, size, generator=torch.Generator().manual_seed(1)).to(HERE)
    lengths = torch.tensor([tokens, 1, max(1, tokens - 2), max(1, tokens // 2)])
    real = (torch.arange(tokens) < lengths[:, None]).to(HERE)
    vectors = hidden.new_empty(4, size)
    pool_kernels.mean_into(vectors, hidden, real if padded else None)
    for number in range(4):
        expected = hidden[number, : int(lengths[number]) if padded else tokens].mean(0)
        torch.testing.assert_close(vectors[number], expected)


@needs_triton
@pytest.mark.parametrize("size", [32, 300])
@torch.inference_mode()
def test_means_of_packed_samples(size: int) -> None:
    lengths = torch.tensor([1, 2, 9, 40])
    hidden = torch.randn(1, 52, size, generator=torch.Generator().manual_seed(1)).to(HERE)
    starts = lengths.cumsum(0) - lengths
    vectors = hidden.new_empty(4, size)
    pool_kernels.mean_into(vectors, hidden, None, Packed(starts.to(HERE), lengths.to(HERE), lengths.numpy()))
    for number, part in enumerate(hidden[0].split(lengths.tolist())):
        torch.testing.assert_close(vectors[number], part.mean(0))


def test_packed_samples_are_cut_evenly() -> None:
    generator = torch.Generator().manual_seed(1)
    for count in (1, 2, 7, 300):
        lengths = torch.randint(1, 30, (count,), generator=generator).sort().values.numpy()
        for tokens in (1, 20, 500, 10**6):
            parts, starts = cut_evenly(lengths, tokens)
            assert parts[0][0] == 0 and parts[-1][1] == count and all(a < b for a, b in parts)
            assert [last for _, last in parts[:-1]] == [first for first, _ in parts[1:]]
            for first, last in parts:
                own = lengths[first:last]
                assert starts[first:last].tolist() == (own.cumsum() - own).tolist()
                assert own.sum() <= 1.5 * max(tokens, lengths.sum() / len(parts)) + 30
            if tokens == 10**6:
                assert len(parts) == 1


@pytest.mark.parametrize("max_tokens", [None, 5, 512])
def test_samples_are_made_up_for_any_backbone(max_tokens: int | None) -> None:
    samples = make_up_samples(max_tokens)
    assert samples.lengths.tolist() == sorted(samples.lengths.tolist())
    assert int(samples.lengths[-1]) == min(70, max_tokens or 70)
    assert len(samples.tokens["input_ids"]) == int(samples.lengths.sum())


@needs_triton
@pytest.mark.parametrize("family", ["deberta-v2", "deberta-v2-absolute", "modernbert"])
@torch.inference_mode()
def test_windows_of_families_that_hide_padding_in_their_own_way(family: str) -> None:
    check_windows(FUSED_POLICIES[0], "mean", family, 20, packs=False)


@needs_triton
@torch.inference_mode()
def test_samples_are_gathered_from_where_they_lie() -> None:
    first, second = torch.randn(3, 5, 24).to(HERE), torch.randn(2, 7, 24).to(HERE)
    chosen = [(second, 1, 6), (first, 0, 3), (first, 2, 5)]  # source, row, tokens
    widths = [7, 5, 5]
    table = torch.tensor(
        [
            [one.data_ptr() + row * one.shape[1] * 24 * 4 for one, row, _ in chosen],
            [0, 7, 12],
            [tokens for _, _, tokens in chosen],
            widths,
        ]
    ).to(HERE)
    hidden = torch.full((17, 24), float("nan"), device=HERE)
    real = torch.full((17,), 9, dtype=torch.uint8, device=HERE)
    pool_kernels.gather_into(hidden, real, table, 7)
    start = 0
    for (one, row, tokens), width in zip(chosen, widths):
        assert torch.equal(hidden[start : start + tokens], one[row, :tokens])
        assert not hidden[start + tokens : start + width].any()
        assert real[start : start + width].tolist() == [int(place < tokens) for place in range(width)]
        start += width


@needs_triton
@pytest.mark.parametrize("labels", [2, 3, 7])
@pytest.mark.parametrize("policy", FUSED_POLICIES, ids=lambda policy: type(policy).__name__)
@torch.inference_mode()
def test_decisions_are_the_policys(policy: ExitPolicy, labels: int) -> None:
    policy.bind([1, 2, 3, 4], labels)
    rule = fused_rule(policy)
    assert rule is not None
    generator = torch.Generator().manual_seed(labels)
    samples = 150
    # Few different numbers, so that there are ties; more than one program's samples.
    said = (torch.randint(-3, 4, (4, samples, labels), generator=generator) / 2).to(HERE)
    ledger = Ledger(policy, samples, 4, labels, HERE)
    state = {
        "label": torch.full((samples,), -1.0, dtype=torch.float64, device=HERE),
        "score": torch.zeros(samples, dtype=torch.float64, device=HERE),
        "left": torch.zeros(samples, dtype=torch.uint8, device=HERE),
        "exits": torch.zeros(samples, dtype=torch.int64, device=HERE),
        "output": torch.zeros(samples, labels, dtype=torch.float64, device=HERE),
    }
    numbers = torch.tensor(rule.numbers, dtype=torch.float64, device=HERE)
    rows = torch.arange(samples, device=HERE)
    for number in range(1, 5):
        logits = said[number - 1][rows].contiguous()
        ledger.step(number, ExitSignals(logits))
        flags = torch.empty(len(rows), dtype=torch.uint8, device=HERE)
        pool_kernels.decide(rule, numbers[number - 1], number, logits, rows, state, flags, number == 4)
        assert flags.bool().tolist() == ledger.left.tolist()
        if number == 2:  # some of those who have left are taken out, and some are not
            gone = ledger.left.clone()
            gone[::3] = False
            ledger.take_out(gone.nonzero().squeeze(1), (~gone).nonzero().squeeze(1))
            rows = rows[~gone]
    ledger.settle()
    expected = ledger.answers.decisions()
    assert state["exits"].tolist() == expected.exits.tolist()
    torch.testing.assert_close(state["output"].cpu(), expected.log_probabilities.double(), rtol=1e-9, atol=1e-9)
    if expected.scores is not None:
        torch.testing.assert_close(state["score"].cpu(), expected.scores.double(), rtol=1e-9, atol=1e-9)


@needs_triton
@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("policy", FUSED_POLICIES, ids=lambda policy: type(policy).__name__)
@torch.inference_mode()
def test_a_window(policy: ExitPolicy, pooling: str, family: str) -> None:
    check_windows(policy, pooling, family, 30, packs=False)


def check_windows(policy: ExitPolicy, pooling: str, family: str, samples: int, packs: bool) -> None:
    made = network(pooling, family)
    DepthPools.prepare(made, policy)
    kernels = window_kernels(made, policy, HERE, set())
    assert kernels is not None
    compare_kernels(made, policy, HERE, kernels)
    assert kernels.packs == packs
    heads = BatchHeads(made, policy, set())
    for _, _, window in sorted_windows(windows(ragged_batches(make_batches(samples, 7)), 10**6), HERE):
        found, expected = (run_to_end(pool(made, policy, window, 40, 4, 0.0, heads, one)) for one in (kernels, None))
        same(found, expected)


@needs_triton
@pytest.mark.parametrize("family, pooling", [("bert", "cls"), ("mpnet", "mean")])
@torch.inference_mode()
def test_a_packed_window(family: str, pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_kernels, "serves", lambda like, num_heads=None: True)
    check_windows(FUSED_POLICIES[0], pooling, family, 20, packs=True)


@needs_triton
@torch.inference_mode()
def test_packed_samples_that_say_something_else_are_found_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(block_kernels, "serves", lambda like, num_heads=None: True)
    made, policy = network(), FUSED_POLICIES[0]
    DepthPools.prepare(made, policy)
    kernels = window_kernels(made, policy, HERE, set())
    assert kernels is not None
    run_packed = type(made.backbone)._run_packed
    monkeypatch.setattr(
        type(made.backbone), "_run_packed", lambda self, *rest: run_packed(self, *rest).roll(1, dims=1), raising=True
    )
    compare_kernels(made, policy, HERE, kernels)
    assert not kernels.packs and "not packed: at exit 1" in caplog.text


@pytest.mark.skipif(HERE.type != "cuda" or not can_run(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@torch.inference_mode()
def test_the_engine_uses_them(dtype: str) -> None:
    made = network()
    cast_network(made, dtype)
    policy, batches = FUSED_POLICIES[0], make_batches(200, 16)
    engine, plain = DepthPools(), DepthPools(use_kernels=False)
    for _ in range(2):
        _, found = gather_decisions(engine.run(made, policy, ragged_batches(batches)), 3, 200)
    _, expected = gather_decisions(plain.run(made, policy, ragged_batches(batches)), 3, 200)
    assert engine.use_kernels and engine._tried is not None and engine._tried[1] == (dtype == "float16")
    assert (found.exits == expected.exits).float().mean() > 0.98


@needs_triton
@torch.inference_mode()
def test_kernels_that_say_something_else_are_found_out() -> None:
    made, policy = network(), Beem(thresholds=0.2, weights=WEIGHTS)
    DepthPools.prepare(made, policy)
    kernels = window_kernels(made, policy, HERE, set())
    assert kernels is not None
    kernels.numbers[:, 2] = 1.0  # everybody leaves at exit 1
    with pytest.raises(KernelsDisagree):
        compare_kernels(made, policy, HERE, kernels)
    kernels.heads[0].classifier = -kernels.heads[0].classifier
    with pytest.raises(KernelsDisagree, match="exit 1"):
        kernels.agreed.clear()
        compare_kernels(made, policy, HERE, kernels)


def test_what_no_kernel_knows_has_none() -> None:
    made = network().cpu()
    policy = Voting(thresholds=0.9)
    DepthPools.prepare(made, policy)
    assert window_kernels(made, policy, torch.device("cpu"), set()) is None
