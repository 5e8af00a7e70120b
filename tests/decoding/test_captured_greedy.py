"""Captured decoding, with a recorder that runs on the spot what it would capture, against the plain kind."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from beem_plugin.decoding import CaptionDecoding, SkippedBlocks
from beem_plugin.decoding import captured_greedy as captured_module
from beem_plugin.decoding.captured_greedy import CapturedGreedy
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.meter import CaptionMacs
from beem_plugin.decoding.mixed_depths import MixedDepths
from beem_plugin.decoding.row_decoding import slots_for
from beem_plugin.decoding.row_store import RowStore
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import MultiExitCaptioner
from tests.decoding.slow_decoder import slow_caption
from tests.decoding.test_decoding import RULES as OTHER_RULES
from tests.decoding.test_decoding import SKIPPED
from tests.tiny_captioner import BOS, EOS, captioner, images, policy, settled, settled_images

LENGTH = 12
RULES: list[dict[str, Any]] = [
    {"type": "final"},
    {"type": "max_probability", "thresholds": "never"},
    {"type": "max_probability", "thresholds": 0.0},
    *OTHER_RULES[:6],
    {"type": "beem", "weights": "cost", "thresholds": 0.3, "min_exit": 3},
    *OTHER_RULES[6:],
    {"type": "voting", "thresholds": 0.9, "min_exit": 2},
]


class OnTheSpot:
    """Runs work when a graph of it would be made, as often as it would, and when the graph would be started."""

    def __init__(self, device: torch.device) -> None:
        self.captured = self.started = 0

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        for _ in range(3):
            work()
        self.captured += 1

        def start() -> None:
            self.started += 1
            work()

        return start

    def aside(self, work: Callable[[], None]) -> None:
        raise AssertionError("nothing is put aside")

    def together(self) -> None:
        raise AssertionError("nothing is put aside")

    def enter(self) -> None:
        pass

    def wait(self) -> None:
        pass


def kind_of(skipped: str) -> SkippedBlocks:
    return SkippedBlocks.from_params({"type": skipped})


@pytest.fixture(autouse=True)
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapturedGreedy, "worth_capturing", 1)


@torch.inference_mode()
def run(
    captured: CapturedGreedy,
    model: MultiExitCaptioner,
    pixels: Tensor,
    rule: ExitPolicy,
    skipped: str = "propagate",
    length: int = LENGTH,
) -> tuple[list[GeneratedCaption], CaptionMacs]:
    network = model.decoder
    rule.bind(network.exit_layers, network.num_labels)
    macs = CaptionMacs()
    states = network.image_states({"pixel_values": pixels})
    found = captured.run(network, rule, kind_of(skipped), states, macs, BOS, EOS, length)
    assert found is not None, captured.failed
    return found, macs


def same(found: list[GeneratedCaption], expected: list[GeneratedCaption], close: float = 1e-5) -> None:
    assert [caption.tokens for caption in found] == [caption.tokens for caption in expected]
    assert [caption.exits for caption in found] == [caption.exits for caption in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=close)
        assert one.score == pytest.approx(other.score, abs=10 * close)


def decoded(model: MultiExitCaptioner, pixels: Tensor, rule: ExitPolicy, skipped: str, length: int = LENGTH) -> Any:
    model.decoding = CaptionDecoding(max_length=length, skipped_blocks=kind_of(skipped))
    return model.decode({"pixel_values": pixels}, policy=rule)


# Every rule with every way to fill in skipped blocks; the other heads with a way each.
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["type"])
@pytest.mark.parametrize(
    ("keys", "skipped"),
    [
        ({}, "propagate"),
        ({}, "recompute"),
        ({}, "copy"),
        ({"exit_layers": [2, 3, 6]}, "recompute"),
        ({"shortlist": 10}, "propagate"),
        ({"head": "past_future"}, "recompute"),
    ],
    ids=str,
)
def test_captions_and_costs_are_those_of_the_plain_decoder(
    skipped: str, rule: dict[str, Any], keys: dict[str, Any]
) -> None:
    if "exit_layers" in keys and isinstance(rule.get("thresholds"), list):
        rule = {**rule, "thresholds": 0.4}
    if "exit_layers" in keys and rule.get("min_exit", 0) > 2:
        rule = {**rule, "min_exit": 2}
    model, pixels = captioner(decoder=keys).double(), images(7).double()
    found, macs = run(CapturedGreedy(OnTheSpot), model, pixels, policy(**rule), skipped)
    expected = decoded(model, pixels, policy(**rule), skipped)
    same(found, expected.captions)
    assert macs.heads == pytest.approx(expected.macs.heads)
    assert macs.cross == expected.macs.cross and macs.skipped == expected.macs.skipped
    assert macs.blocks == pytest.approx(expected.macs.blocks, rel=0.02 if skipped == "recompute" else 1e-12)


@pytest.mark.parametrize("skipped", SKIPPED)
@pytest.mark.parametrize("rule", RULES[3:10], ids=lambda rule: rule["type"])
def test_captions_are_those_of_a_slow_decoder(skipped: str, rule: dict[str, Any]) -> None:
    model, pixels = captioner().double(), images(5).double()
    found, _ = run(CapturedGreedy(OnTheSpot), model, pixels, policy(**rule), skipped)
    for caption, image in zip(found, pixels, strict=True):
        assert (caption.tokens, caption.exits) == slow_caption(model, image, policy(**rule), skipped, LENGTH)


def test_graphs_serve_batches_of_all_sizes_and_several_policies() -> None:
    model = captioner(4).double()
    captured = CapturedGreedy(OnTheSpot)
    pixels = images(11, 4).double()
    made: list[int] = []
    for rule in (RULES[3], RULES[0], RULES[8]) * 2:
        for start, stop in ((0, 8), (8, 11), (3, 4), (0, 8)):
            found, _ = run(captured, model, pixels[start:stop], policy(**rule))
            same(found, decoded(model, pixels[start:stop], policy(**rule), "propagate").captions)
        made.append(captured.recorder.captured)  # type: ignore[union-attr]
    assert made[2] == made[-1] and len(captured.graphs) == 3  # nothing is captured again
    store = captured.store
    found, _ = run(captured, model, pixels, policy(**RULES[3]))
    same(found, decoded(model, pixels, policy(**RULES[3]), "propagate").captions)
    assert captured.store is not store and len(captured.graphs) == 1  # a larger batch needs more room


def test_graphs_of_policies_that_are_not_used_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_module, "MAX_POLICIES", 2)
    model, pixels = captioner(), images(2)
    captured = CapturedGreedy(OnTheSpot)
    for threshold in (0.2, 0.4, 0.6):
        run(captured, model, pixels, policy(type="max_probability", thresholds=threshold))
    assert len(captured.graphs) == 2


def test_new_weights_and_other_lengths_are_noticed() -> None:
    model, pixels = captioner().double(), images(4).double()
    captured = CapturedGreedy(OnTheSpot)
    run(captured, model, pixels, policy(**RULES[8]), "recompute")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    run(captured, model, pixels, policy(**RULES[0]), "recompute")
    assert len(captured.graphs) == 1  # those of the weights before are gone
    for length in (LENGTH, 3, 1):
        found, _ = run(captured, model, pixels, policy(**RULES[8]), "recompute", length)
        same(found, decoded(model, pixels, policy(**RULES[8]), "recompute", length).captions)


def test_a_word_costs_one_start_an_exit_at_which_somebody_may_leave() -> None:
    model, pixels = captioner(), images(3)
    captured = CapturedGreedy(OnTheSpot)
    found, _ = run(captured, model, pixels, policy(type="final"))
    words = max(len(caption.tokens) for caption in found)
    assert captured.recorder.started == words  # type: ignore[union-attr]
    rule = policy(type="max_probability", thresholds=["never", 2.0, "never", "never", 2.0])
    captured = CapturedGreedy(OnTheSpot)
    assert run(captured, model, pixels, rule)[0] == found
    assert captured.recorder.started <= 3 * words  # type: ignore[union-attr]


@pytest.mark.parametrize("Refusal", [RuntimeError, AssertionError])
def test_what_cannot_be_captured_is_decoded_without(caplog: pytest.LogCaptureFixture, Refusal: type[Exception]) -> None:
    class Refuses(OnTheSpot):
        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            raise Refusal("operation not permitted when stream is capturing\nand more")

    model, pixels = captioner(), images(2)
    captured = CapturedGreedy(Refuses)
    rule = policy(**RULES[3])
    rule.bind(model.decoder.exit_layers, model.decoder.num_labels)
    with torch.inference_mode():
        states = model.decoder.image_states({"pixel_values": pixels})
        macs = CaptionMacs()
        for _ in range(2):
            assert captured.run(model.decoder, rule, kind_of("copy"), states, macs, BOS, EOS, LENGTH) is None
    assert macs == CaptionMacs()
    warning = "CUDA graphs are not used, words are decoded without: operation not permitted when stream is capturing"
    assert [record.message for record in caplog.records if "graphs" in record.message] == [f"MaxProbability: {warning}"]


def test_a_rule_of_ones_own_for_skipped_blocks_needs_its_own_graph_part() -> None:
    class Mine(type(kind_of("propagate"))):  # type: ignore[misc]
        def fill(self, *args: Any) -> None:
            super().fill(*args)

    assert not Mine().serves_graphs
    assert all(kind_of(name).serves_graphs for name in SKIPPED)


def test_a_copy_of_a_network_has_no_graphs() -> None:
    model, pixels = captioner(), images(2)
    captured = CapturedGreedy.of(model.decoder)
    assert CapturedGreedy.of(model.decoder) is captured
    captured.make_recorder = OnTheSpot
    run(captured, model, pixels, policy(**RULES[3]))
    other = copy.deepcopy(model.decoder)
    assert len(captured.graphs) == 1 and not CapturedGreedy.of(other).graphs
    assert CapturedGreedy.of(other).make_recorder is OnTheSpot


def test_ways_to_fill_in_do_not_mix() -> None:
    model, pixels = captioner().double(), images(6).double()
    captured = CapturedGreedy(OnTheSpot)
    for _ in range(2):
        for skipped in SKIPPED:
            found, _ = run(captured, model, pixels, policy(**RULES[3]), skipped)
            same(found, decoded(model, pixels, policy(**RULES[3]), skipped).captions)
    assert len(captured.graphs) == 3


def test_what_comes_once_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapturedGreedy, "worth_capturing", 2)
    model, captured = captioner(), CapturedGreedy(OnTheSpot)
    states = model.decoder.image_states({"pixel_values": images(2)})
    for turn in range(3):
        for rule in (policy(**RULES[3]), policy(**RULES[8])):
            rule.bind(model.decoder.exit_layers, model.decoder.num_labels)
            with torch.inference_mode():
                found = captured.run(model.decoder, rule, kind_of("copy"), states, CaptionMacs(), BOS, EOS, LENGTH)
            assert (found is None) == (turn == 0)


def test_slots() -> None:
    assert [slots_for(count) for count in (1, 2, 3, 8, 9, 32)] == [1, 2, 4, 8, 16, 32]
    assert [slots_for(count, 8, 4) for count in (1, 8, 9, 33)] == [8, 8, 32, 128]


def test_answers_that_are_no_numbers_do_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    from beem_plugin.decoding import graph_launch

    monkeypatch.setattr(graph_launch, "PATIENCE_SECONDS", 0.01)
    waited: list[int] = []
    seen = np.full((2, 3), np.nan)
    table, nothing = np.zeros((3, 2), np.int64), lambda: None
    launch = graph_launch.Launch(nothing, table, seen, True, 0.0, lambda: waited.append(1), nothing)
    store = RowStore(captioner().decoder.backbone.decoder, 5, LENGTH, 0, torch.zeros(1))
    launch.run(np.array([2]), 4, store)
    assert np.isnan(launch.answers(1)).all() and waited == [1]
    assert launch.table.tolist() == [[2, 5], [4, 0], [2 * LENGTH + 4, 5 * LENGTH]]


ON_A_GPU: list[tuple[str, dict[str, Any], torch.dtype]] = [
    ("propagate", {}, torch.float64),
    ("propagate", {}, torch.float32),
    ("recompute", {}, torch.float32),
    ("copy", {"head": "past_future"}, torch.float32),
    ("recompute", {"shortlist": 10}, torch.float64),
]


@pytest.mark.parametrize(("skipped", "keys", "dtype"), ON_A_GPU, ids=str)
def test_rounding_does_not_decide_what_a_gpu_is_held_to(skipped: str, keys: dict[str, Any], dtype: torch.dtype) -> None:
    model, pixels = settled(decoder=keys).double(), settled_images()
    expected = [decoded(model, pixels, policy(**rule), skipped).captions for rule in RULES]
    assert {exit for captions in expected for caption in captions for exit in caption.exits} == {1, 2, 3, 4, 5, 6}
    for seed in range(3):  # some fifty times the rounding of a float32
        other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in other.decoder.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.mul_(1 + 3e-6 * noise)
        for rule, wanted in zip(RULES, expected, strict=True):
            same(decoded(other, pixels, policy(**rule), skipped).captions, wanted, 1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize(("skipped", "keys", "dtype"), ON_A_GPU, ids=str)
def test_graphs_on_a_gpu(
    skipped: str,
    keys: dict[str, Any],
    dtype: torch.dtype,
    mixes: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CapturedGreedy, "mixes_depths", mixes)
    model, pixels = settled(decoder=keys).to("cuda", dtype), settled_images().to("cuda", dtype)
    model.decoding = CaptionDecoding(max_length=LENGTH, skipped_blocks=kind_of(skipped), capture=False)
    expected = [model.decode({"pixel_values": pixels}, policy=policy(**rule)) for rule in RULES]
    model.decoding.capture = True
    for _ in range(3):
        for rule, wanted in zip(RULES, expected, strict=True):
            found = model.decode({"pixel_values": pixels}, policy=policy(**rule))
            same(found.captions, wanted.captions, 1e-5 if dtype == torch.float64 else 1e-3)
            gc.collect()
            # Whatever a graph needs and nobody holds is given away, and written over here.
            torch.cuda.empty_cache()
            for size in (1, 10, 100, 1000, 10_000, 100_000) * 4:
                torch.full((size,), float("nan"), device="cuda")
    assert not [record.message for record in caplog.records if "graphs" in record.message]
    graphs = CapturedGreedy.of(model.decoder).graphs.values()
    assert len(graphs) == len(RULES)
    if mixes and dtype == torch.float32 and not keys:
        assert sum(isinstance(made, MixedDepths) for made in graphs) >= 9


def test_whoever_listens_to_a_module_is_heard() -> None:
    model, pixels = captioner().double(), images(3).double()
    captured, rule = CapturedGreedy.of(model.decoder), policy(**RULES[8])
    captured.make_recorder = OnTheSpot
    before, _ = run(captured, model, pixels, rule)
    states = model.decoder.image_states({"pixel_values": pixels})
    assert states is not None

    def answer() -> Any:
        with torch.inference_mode():
            return captured.run(model.decoder, rule, kind_of("propagate"), states, CaptionMacs(), BOS, EOS, LENGTH)

    block: Any = model.decoder.backbone.decoder.blocks[1]
    heard: list[int] = []
    for module in (block.attn.c_attn, block.mlp, model.decoder.exits[2]):
        handle = module.register_forward_hook(lambda *given: heard.append(1))
        assert answer() is None
        decoded(model, pixels, rule, "propagate")
        handle.remove()
        same(answer(), before)
    assert heard
    block.mlp.dropout = Doubled()
    found = answer()
    same(found, decoded(model, pixels, rule, "propagate").captions)
    assert [caption.tokens for caption in found] != [caption.tokens for caption in before]


class Doubled(torch.nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return 2 * hidden


@pytest.mark.parametrize("replaced", ["act", "mlp"])
def test_another_mlp_is_called(replaced: str) -> None:
    model, pixels, rule = captioner().double(), images(3).double(), policy(**RULES[8])
    block: Any = model.decoder.backbone.decoder.blocks[0]
    if replaced == "act":
        block.mlp.act = torch.nn.ReLU()
    else:
        block.mlp = torch.nn.Sequential(block.mlp, Doubled())
    found, _ = run(CapturedGreedy(OnTheSpot), model, pixels, rule)
    same(found, decoded(model, pixels, rule, "propagate").captions)
    assert [c.tokens for c in found] != [
        c.tokens for c in run(CapturedGreedy(OnTheSpot), captioner().double(), pixels, rule)[0]
    ]


def test_a_policy_that_is_changed_afterwards_changes_no_graph_of_an_equal_one() -> None:
    model, pixels = captioner().double(), images(7).double()
    captured, first = CapturedGreedy(OnTheSpot), policy(type="max_probability", thresholds=0.3)
    run(captured, model, pixels, policy(type="final"))
    run(captured, model, pixels[:1], first)
    first.values = [0.99] * 5
    equal = policy(type="max_probability", thresholds=0.3)
    same(run(captured, model, pixels, equal)[0], decoded(model, pixels, equal, "propagate").captions)


def test_graphs_end_with_training_and_with_the_network() -> None:
    model, pixels = captioner(), images(2)
    captured = CapturedGreedy.of(model.decoder)
    captured.make_recorder = OnTheSpot
    run(captured, model, pixels, policy(**RULES[3]))
    model.train()
    model.eval()
    assert not CapturedGreedy.of(model.decoder).graphs


def test_buffers_that_would_be_too_large_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pixels = captioner(), images(2)
    store = RowStore(model.decoder.backbone.decoder, 2, LENGTH, 5, torch.zeros(1))
    size = RowStore.bytes_for(store.decoder, 2, LENGTH, 5, torch.zeros(1))
    tensors = (*store.keys, *store.values, *store.image_keys, *store.image_values)
    assert size == sum(tensor[:-1].numel() * tensor.element_size() for tensor in tensors)
    monkeypatch.setattr(captured_module, "MOST_BYTES", size - 1)
    with pytest.raises(AssertionError):
        run(CapturedGreedy(OnTheSpot), model, pixels, policy(**RULES[3]))
