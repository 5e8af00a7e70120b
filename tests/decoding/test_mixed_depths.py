"""Captions whose words are at different depths in one launch, against the plain kind and slow arithmetic."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.decoding import mixed_linear, row_attention
from beem_plugin.decoding.captured_greedy import CapturedGreedy
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.mixed_counts import count_words
from beem_plugin.decoding.mixed_depths import MixedDepths
from beem_plugin.decoding.mixed_lists import list_words
from beem_plugin.decoding.mixed_state import BlockWeights, Linear, MixedState, folded, vocabulary_of
from beem_plugin.decoding.row_store import RowStore
from beem_plugin.models import MultiExitCaptioner
from tests.decoding.test_captured_greedy import RULES, OnTheSpot, decoded, kind_of, run, same
from tests.decoding.test_decoding import SKIPPED
from tests.tiny_captioner import policy, settled, settled_images

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
by_kernels = pytest.mark.skipif(
    row_attention.triton is None or not (HAS_GPU or INTERPRETED), reason="needs Triton and a GPU or its interpreter"
)
KNOWN = ("final", "max_probability", "margin", "entropy", "patience", "beem", "decaying_threshold", "fixed_exit")
"""Rules that the kernels decide."""
LENGTH = 6


@pytest.fixture(autouse=True)
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapturedGreedy, "worth_capturing", 1)
    monkeypatch.setattr("beem_plugin.decoding.mixed_depths.FEW_ROWS", 0)


@pytest.mark.parametrize("skipped", SKIPPED)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule["type"] in KNOWN], ids=lambda rule: rule["type"])
def test_costs_are_told_from_depths(rule: dict[str, Any], skipped: str) -> None:
    model, made = settled().double(), policy(**rule)
    network = model.decoder
    found = decoded(model, settled_images(), made, skipped)
    exits = np.zeros((len(found.captions), 12), dtype=np.int64)
    for row, caption in zip(exits, found.captions, strict=True):
        row[: len(caption.exits)] = caption.exits
    asks = [number == network.num_exits or made.needs(number) for number in range(1, network.num_exits + 1)]
    head_macs = [network.head_macs(number) if wanted else 0 for number, wanted in enumerate(asks, start=1)]
    store = RowStore(network.backbone.decoder, 7, 12, found.patches, torch.zeros(1))
    macs = count_words(exits, network.exit_layers, head_macs, kind_of(skipped), store)
    assert (macs.heads, macs.cross, macs.skipped) == (found.macs.heads, found.macs.cross, found.macs.skipped)
    # `recompute` counts a word's keys a little otherwise where several are completed together
    assert macs.blocks == pytest.approx(found.macs.blocks, rel=0.02 if skipped == "recompute" else 1e-12)


def norms(count: int, size: int) -> list[torch.nn.LayerNorm]:
    made = [torch.nn.LayerNorm(size, eps=1e-3).double() for _ in range(count)]
    for norm in made:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    return made


@torch.no_grad()
def test_a_normalisation_is_folded_into_what_follows_it() -> None:
    torch.manual_seed(0)
    values = 3 * torch.randn(7, 20, dtype=torch.float64) + 50
    weight, bias = torch.randn(3, 20, 11).double(), torch.randn(3, 11).double()
    made = norms(3, 20)
    with torch.no_grad():
        made[1].weight *= 40
    linear = folded(weight, bias, made)
    words = torch.randn(13, 20).double()
    heads = vocabulary_of(words, made)
    assert heads.gain is not None and heads.slope is not None and heads.boost is not None
    assert heads.gain.abs().max() <= 1 and linear.weight.sum(1).abs().max() < 1e-9
    mean, spread = values.mean(1, keepdim=True), (values.var(1, keepdim=True, correction=0) + linear.eps).sqrt()
    for block, norm in enumerate(made):
        expected = norm(values) @ weight[block] + bias[block]
        torch.testing.assert_close(
            values @ linear.weight[block] / spread + linear.bias[block], expected, atol=1e-4, rtol=0
        )
        found = (values * heads.gain[block]) @ heads.weight.t() - mean * heads.slope[block]
        found = heads.boost[block] * found / spread + heads.bias[block]
        torch.testing.assert_close(found, norm(values) @ words.t(), atol=1e-3, rtol=0)


def somewhere() -> MixedState:
    """Five captions of up to six words, of which one has ended, in four blocks, the second and fourth with an exit."""
    state = MixedState(5, LENGTH, torch.tensor([0, 1, 0, 2], dtype=torch.int32, device=DEVICE))
    state.start(5)
    state.layers.copy_(torch.tensor([1, 3, -1, 1, 0]))
    state.positions.copy_(torch.tensor([3, 2, 5, 0, 4]))
    state.filled.copy_(
        torch.tensor([[1, 4, 1, 1, 0, 0], [3, 4, 3, 0, 0, 0], [9] * 6, [1] + [0] * 5, [2, 1, 0, 1, 0, 0]])
    )
    return state


@by_kernels
def test_lists_name_words_that_are_there_and_those_that_skipped_a_block() -> None:
    state = somewhere()
    list_words(state, 5, True, True)
    found = [row[:count].tolist() for row, count in zip(state.listed, state.counts[:, 1].tolist(), strict=True)]
    assert found == [[4 * 6 + 4, 4 * 6 + 2], [3, 18, 0, 2], [], [8, 6], [3, 8, 18]]
    assert state.counts[:, 0].tolist() == [1, 2, 0, 1, 3]
    assert state.heads[:3].tolist() == [1, 2, 1]
    filled = [[2, 4, 2, 2, 0, 0], [4, 4, 4, 0, 0, 0], [9] * 6, [2] + [0] * 5, [2, 1, 1, 1, 1, 0]]
    assert state.filled.tolist() == filled
    worked = state.worked.view(-1).nonzero().flatten().tolist()
    assert worked == sorted([28, 26, 3, 18, 0, 2, 8, 6])


@by_kernels
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [32, 200])
def test_each_word_is_multiplied_by_its_own_block(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    state, outputs = somewhere(), 66
    list_words(state, 5, True, True)
    source = (torch.randn(30, size, device=DEVICE) + 20).to(dtype)  # far from 0, as a decoder's states may be
    weight, bias = torch.randn(4, size, outputs).to(dtype) / size**0.5, torch.randn(4, outputs).to(dtype)
    made = norms(4, size)
    lines = torch.randn(50, size).to(dtype) / size**0.5
    linear = folded(weight, bias, made)
    heads = vocabulary_of(lines, made[:2])
    for one in (linear, heads):
        for name, value in vars(one).items():
            if isinstance(value, Tensor):
                setattr(one, name, (value if name in ("bias", "slope", "boost") else value.to(dtype)).to(DEVICE))
    start = torch.randn(30, outputs, device=DEVICE).to(dtype)
    results = {kind: start.clone() for kind in (mixed_linear.STORE, mixed_linear.ADD, mixed_linear.GELU)}
    for kind, result in results.items():
        mixed_linear.mixed_linear(state, 5, kind, source, linear, result, all_words=kind == mixed_linear.STORE)
    asked = torch.zeros(30, outputs // 3, device=DEVICE, dtype=dtype)
    stored = tuple(torch.zeros(4, 6, 2, LENGTH, outputs // 6, device=DEVICE, dtype=dtype) for _ in range(2))
    mixed_linear.mixed_linear(state, 5, mixed_linear.KEYS_VALUES, source, linear, asked, True, stored)  # type: ignore[arg-type]
    said = torch.zeros(5, 50, device=DEVICE, dtype=dtype)
    mixed_linear.mixed_linear(state, 5, mixed_linear.HEAD, source, heads, said)
    close = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    touched = {kind: torch.zeros(30, dtype=torch.bool) for kind in results}
    for block, (present, everybody) in enumerate(state.counts[:4].tolist()):
        for place in state.listed[block, :everybody].tolist():
            exact = made[block](source[place].double().cpu()) @ weight[block].double() + bias[block].double()
            expected = {
                mixed_linear.STORE: exact,
                mixed_linear.ADD: exact + start[place].double().cpu(),
                mixed_linear.GELU: functional.gelu(exact, approximate="tanh"),
            }
            row, position = divmod(place, LENGTH)
            for which, buffer in enumerate(stored):
                third = exact.view(3, -1)[1 + which]
                torch.testing.assert_close(buffer[block, row, :, position].flatten().double().cpu(), third, **close)
            torch.testing.assert_close(asked[place].double().cpu(), exact.view(3, -1)[0], **close)
            for kind, result in results.items():
                if kind == mixed_linear.STORE or place in state.listed[block, :present].tolist():
                    touched[kind][place] = True
                    torch.testing.assert_close(result[place].double().cpu(), expected[kind], **close)
    for kind, result in results.items():
        assert torch.equal(result[~touched[kind]], start[~touched[kind]])
    for place, exit_number in zip(state.listed[4, :3].tolist(), (1, 2, 1), strict=True):
        exact = made[exit_number - 1](source[place].double().cpu()) @ lines.double().t()
        torch.testing.assert_close(said[place // LENGTH].double().cpu(), exact, **close)
    assert not said[[2, 4]].any() and said[0].any()


def mixed(
    captured: CapturedGreedy, model: MultiExitCaptioner, pixels: Tensor, rule: dict[str, Any], skipped: str
) -> tuple[list[GeneratedCaption], Any]:
    found = run(captured, model, pixels, policy(**rule), skipped, LENGTH)
    assert isinstance(next(reversed(captured.graphs.values())), MixedDepths)
    return found


@by_kernels
@pytest.mark.parametrize(
    ("rule", "skipped"), [(RULES[place], SKIPPED[place % 3]) for place in (0, 2, 3, 4, 5, 7, 8, 10)]
)
def test_captions_and_costs_are_those_of_the_plain_decoder(
    rule: dict[str, Any], skipped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_attention, "serves", lambda tensor: True)
    model, pixels = settled().to(DEVICE, torch.float32), settled_images(4).to(DEVICE, torch.float32)
    captured = CapturedGreedy(OnTheSpot)
    for part in (slice(0, 4), slice(1, 3)):  # graphs of fewer rows share the buffers
        found, macs = mixed(captured, model, pixels[part], rule, skipped)
        expected = decoded(model, pixels[part], policy(**rule), skipped, LENGTH)
        same(found, expected.captions, 1e-3)
        for name in ("heads", "cross", "skipped"):
            assert getattr(macs, name) == getattr(expected.macs, name)
        assert macs.blocks == pytest.approx(expected.macs.blocks, rel=0.02 if skipped == "recompute" else 1e-12)


@by_kernels
def test_captions_share_launches_at_different_depths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_attention, "serves", lambda tensor: True)
    model, pixels = settled().to(DEVICE, torch.float32), settled_images(5).to(DEVICE, torch.float32)
    captured, rule = CapturedGreedy(OnTheSpot), {"type": "patience", "patience": 1}
    found, _ = mixed(captured, model, pixels, rule, "propagate")
    alone = max(sum(caption.exits) for caption in found)
    graphs = next(iter(captured.graphs.values()))
    assert isinstance(graphs, MixedDepths)
    # As many launches as the caption that needs most, but for those started before the host saw the end.
    assert alone <= int(graphs.state.launches) <= alone + 12
    together = sum(max((c.exits[place] for c in found if place < len(c.exits)), default=0) for place in range(LENGTH))
    assert alone < together


@pytest.mark.parametrize("changed", ["", "head", "activation", "norm", "words", "precision"])
def test_networks_that_the_kernels_do_not_compute_are_found_out(changed: str) -> None:
    network: Any = settled(decoder={"head": "untied"} if changed == "head" else {}).decoder
    block = network.backbone.decoder.blocks[2]
    if changed == "activation":
        block.mlp.act = torch.nn.GELU()
    if changed == "norm":
        block.ln_2 = torch.nn.LayerNorm(32, elementwise_affine=False)
    if changed == "words":
        network.backbone.decoder.language_model.transformer.wte = torch.nn.EmbeddingBag(50, 32)
    if changed == "precision":
        block.mlp.double()
    assert BlockWeights.serves(network, True) == BlockWeights.serves(network, False) == (not changed)


def test_few_captions_at_full_depth_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("beem_plugin.decoding.mixed_depths.FEW_ROWS", 4)
    assert [MixedDepths.pays(policy(type="final"), count) for count in (1, 4, 5, 512, 513)] == [False] * 2 + [
        True
    ] * 2 + [False]
    assert MixedDepths.pays(policy(type="patience", patience=1), 1)


@by_kernels
@torch.no_grad()
def test_large_gains_do_not_overflow_half_precision() -> None:
    state = somewhere()
    list_words(state, 5, True, False)
    torch.manual_seed(0)
    source = torch.randn(30, 32).half()
    source[:, 3] = 3000
    made, lines = norms(2, 32), torch.randn(50, 32).half() / 32**0.5
    made[0].weight[3] = 30
    heads = vocabulary_of(lines, made)
    heads = Linear(**{name: v.to(DEVICE) if isinstance(v, Tensor) else v for name, v in vars(heads).items()})
    said = torch.zeros(5, 50, device=DEVICE, dtype=torch.float16)
    mixed_linear.mixed_linear(state, 5, mixed_linear.HEAD, source.to(DEVICE), heads, said)
    expected = made[0](source[3].double()) @ lines.double().t()
    torch.testing.assert_close(said[0].double().cpu(), expected, atol=0.2, rtol=0.02)


@by_kernels
def test_decoders_too_large_for_copies_are_captured_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_attention, "serves", lambda tensor: True)
    model, pixels = settled().to(DEVICE, torch.float32), settled_images(2).to(DEVICE, torch.float32)
    most = RowStore.bytes_for(model.decoder.backbone.decoder, 2, LENGTH, 5, torch.zeros(1)) + 100
    monkeypatch.setattr("beem_plugin.decoding.captured_greedy.MOST_BYTES", most)
    captured = CapturedGreedy(OnTheSpot)
    run(captured, model, pixels, policy(type="patience", patience=1), "propagate", LENGTH)
    assert not isinstance(next(iter(captured.graphs.values())), MixedDepths)


@pytest.mark.parametrize("rounds", [True, False])
def test_rounding_of_float32_is_asked_as_torch_allows(rounds: bool) -> None:
    matmul = torch.backends.cuda.matmul
    name, chosen = ("fp32_precision", "tf32" if rounds else "ieee") if knows_precision() else ("allow_tf32", rounds)
    before = getattr(matmul, name)
    setattr(matmul, name, chosen)
    try:
        assert mixed_linear.rounds_float32() == rounds
    finally:
        setattr(matmul, name, before)


def knows_precision() -> bool:
    return hasattr(torch.backends.cuda.matmul, "fp32_precision")


def test_launches_that_are_not_noted_do_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    from beem_plugin.decoding import graph_launch

    monkeypatch.setattr(graph_launch, "PATIENCE_SECONDS", 0.01)
    graphs = MixedDepths.__new__(MixedDepths)
    graphs.recorder = OnTheSpot(DEVICE)
    graphs._wait_for(np.array([-1, 4]), 4)
    with pytest.raises(RuntimeError, match="^4 of 8 launches have been noted"):
        graphs._wait_for(np.array([-1, 4]), 8)


@by_kernels
def test_what_does_not_end_is_noticed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(row_attention, "serves", lambda tensor: True)
    advanced = "beem_plugin.decoding.mixed_depths.advance"
    monkeypatch.setattr(advanced, lambda state, *rest: state.launches.add_(1))
    model, pixels = settled().to(DEVICE, torch.float32), settled_images(1).to(DEVICE, torch.float32)
    captured = CapturedGreedy(OnTheSpot)
    with pytest.raises(AssertionError):
        run(captured, model, pixels, policy(type="final"), "propagate", 2)
    assert captured.failed and not captured.graphs
    assert "go through blocks together from now on: captions have not ended after" in caplog.text
    assert run(captured, model, pixels, policy(type="final"), "propagate", 2)
    assert not isinstance(next(iter(captured.graphs.values())), MixedDepths)
