"""Compiled decoding against the plain decoder; without a GPU by the kernels' references, some of it by the kernels."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from beem_plugin.decoding import CaptionDecoding, Decoded, SkippedBlocks
from beem_plugin.decoding.mixed_depths import compiled_captions
from beem_plugin.decoding.mixed_depths.compiled_captions import CompiledCaptions
from beem_plugin.decoding.mixed_depths.mixed_greedy import MixedGreedy
from beem_plugin.decoding.mixed_depths.weights import DecoderWeights
from beem_plugin.decoding.skipped_blocks import Propagate
from beem_plugin.models import MultiExitCaptioner
from tests.decoding.mixed_depths.test_policy_kernel import MeanConfidence, OnTheHost
from tests.decoding.slow_decoder import slow_caption
from tests.decoding.test_decoding import RULES, SKIPPED
from tests.tiny_captioner import GPT2, VIT, policy, settled, settled_images

LENGTH = 5
BEEM: dict[str, Any] = {"type": "beem", "weights": "cost", "thresholds": 0.3}
FEW = [2, 4, 6]  # a policy's step is traced for each exit, which takes longer than the captions


@pytest.fixture(autouse=True)
def compile_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_captions, "CAPTURE_AFTER", 1)


def captioner(skipped: str = "propagate", use_kernels: bool = False, **keys: Any) -> MultiExitCaptioner:
    """In float32, on the CPU, compiled."""
    model = settled(decoder=keys).float()
    model.decoding = CaptionDecoding(max_length=LENGTH, skipped_blocks=SkippedBlocks.from_params({"type": skipped}))
    model.decoding.compiled = CompiledCaptions(use_kernels, "cpu")
    return model


def images(count: int = 3) -> Tensor:
    return settled_images(count).float()


def decode(model: MultiExitCaptioner, rule: Any, pixels: Tensor | None = None, **keys: Any) -> tuple[Decoded, Decoded]:
    """Compiled and plain."""
    model.decoding.capture = True
    batch = {"pixel_values": images() if pixels is None else pixels}
    found = model.decode(batch, policy=policy(**rule) if isinstance(rule, dict) else rule, **keys)
    model.decoding.capture = False
    return found, model.decode(batch, policy=policy(**rule) if isinstance(rule, dict) else rule, **keys)


def same(found: Decoded, expected: Decoded) -> None:
    for one, other in zip(found.captions, expected.captions, strict=True):
        assert (one.tokens, one.exits) == (other.tokens, other.exits)
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-3)
        assert one.score == pytest.approx(other.score, abs=1e-2)
    assert vars(found.macs) == pytest.approx(vars(expected.macs))


def is_compiled(model: MultiExitCaptioner) -> bool:
    return bool(model.decoding.compiled.decoders)


@pytest.mark.parametrize(
    "head, rule",
    [*(("tied", rule) for rule in [{"type": "final"}, *RULES]), *(("untied", rule) for rule in (RULES[1], BEEM))],
    ids=str,
)
def test_captions_exits_and_costs_are_those_of_the_plain_decoder(head: str, rule: dict[str, Any]) -> None:
    ways = SKIPPED if rule["type"] == "beem" and head == "tied" else [SKIPPED[len(rule["type"] + head) % 3]]
    for skipped in ways:
        model = captioner(skipped, head=head)
        same(*decode(model, rule))
        assert is_compiled(model)


@pytest.mark.parametrize("skipped", SKIPPED)
def test_captions_and_exits_are_those_of_a_slow_decoder(skipped: str) -> None:
    model = captioner(skipped)
    found, _ = decode(model, BEEM)
    assert is_compiled(model) and len({exit for caption in found.captions for exit in caption.exits}) > 1
    for caption, image in zip(found.captions, images(), strict=True):
        assert (caption.tokens, caption.exits) == slow_caption(model, image, policy(**BEEM), skipped, LENGTH)


def test_captions_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    # Triton's interpreter is slow: two blocks, two tokens, no more launches than needed.
    monkeypatch.setattr("beem_plugin.decoding.mixed_depths.mixed_greedy.LAUNCHES", 1)
    model = captioner("recompute", use_kernels=True, backbone={"encoder": VIT, "decoder": {**GPT2, "n_layer": 2}})
    found, expected = decode(model, {"type": "max_probability", "thresholds": 0.15}, max_length=2)
    same(found, expected)
    assert is_compiled(model) and {exit for caption in found.captions for exit in caption.exits} == {1, 2}


def test_exits_at_some_blocks_and_a_users_rule() -> None:
    model = captioner(exit_layers=[2, 3, 6])
    same(*decode(model, BEEM))
    assert is_compiled(model)
    model = captioner()
    same(*decode(model, MeanConfidence()))
    assert is_compiled(model)


def test_a_learned_rule() -> None:
    model = captioner(signals=["predicted_error"])
    rule = policy(type="predicted_error", thresholds=0.5)
    found, expected = decode(model, rule)
    same(found, expected)
    assert is_compiled(model) and len({exit for caption in found.captions for exit in caption.exits}) > 1


def test_batches_of_all_sizes_and_lengths() -> None:
    model = captioner(exit_layers=FEW)
    for count in (1, 3, 2):
        same(*decode(model, BEEM, images(count)))
    assert len(model.decoding.compiled.decoders) == 2  # for 4 and 2 rows: a larger batch needs other buffers
    same(*decode(model, BEEM, max_length=1))


def test_captions_share_launches_at_different_depths() -> None:
    model, rule = captioner(), {"type": "patience", "patience": 1}
    found, _ = decode(model, rule, images(5))
    alone = max(sum(caption.exits) for caption in found.captions)
    state = model.decoding.compiled.state
    assert state is not None
    # As many launches as the deepest caption needs, and one more start of four that is queued meanwhile.
    assert alone <= 4 * int(state.launches) <= alone + 3 + 4
    together = sum(max(c.exits[p] for c in found.captions if p < len(c.exits)) for p in range(LENGTH))
    assert alone < together


@pytest.mark.parametrize("rule", [{"type": "final"}, {"type": "fixed_exit", "exit": 3}], ids=str)
def test_with_one_exit_heads_are_computed_once_a_token(rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[bool] = []
    heads = MixedGreedy._heads

    def counted(self: MixedGreedy, exit_numbers: torch.Tensor) -> None:
        computed.append(bool((exit_numbers > 0).any()))
        heads(self, exit_numbers)

    monkeypatch.setattr(MixedGreedy, "_heads", counted)
    model = captioner()
    found, expected = decode(model, rule)
    same(found, expected)
    state = model.decoding.compiled.state
    assert state is not None
    tokens, starts = max(len(caption.tokens) for caption in found.captions), int(state.launches)
    # A start is a token; on a GPU one more is queued meanwhile.
    assert tokens <= starts <= tokens + 1 and sum(computed[-starts:]) == tokens


@pytest.mark.parametrize(
    "keys",
    [
        {"head": "past_future"},
        {"head": "low_rank"},
        {"head": "linear_shortcut"},
        {"shortlist": 10},
        {"branch": {"type": "transformer", "width": 8, "num_heads": 2}},
    ],
    ids=str,
)
def test_other_heads_are_decoded_on_the_plain_path(keys: dict[str, Any]) -> None:
    keys = {**keys, "head": {"type": "low_rank", "rank": 8}} if keys.get("head") == "low_rank" else keys
    model = captioner(**keys)
    same(*decode(model, BEEM))
    assert not is_compiled(model) and model.decoding.compiled.refused


@pytest.mark.parametrize(
    "rule", [{"type": "voting", "thresholds": 0.9, "min_exit": 2}, OnTheHost()], ids=["voting", "on the host"]
)
def test_other_rules_are_decoded_on_the_plain_path(rule: Any) -> None:
    model = captioner()
    same(*decode(model, rule))
    assert not is_compiled(model) and len(model.decoding.compiled.refused) == 1


def test_a_skipping_rule_of_ones_own_is_decoded_on_the_plain_path() -> None:
    class Mine(Propagate):
        pass

    model = captioner()
    model.decoding.skipped_blocks = Mine()
    same(*decode(model, BEEM))
    assert not is_compiled(model)


def test_settings_are_compiled_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_captions, "CAPTURE_AFTER", 2)
    model = captioner()
    for compiled in (0, 1, 1):
        decode(model, BEEM, images(1))
        assert len(model.decoding.compiled.decoders) == compiled


def halved(model: MultiExitCaptioner) -> None:
    with torch.no_grad():
        model.decoder.backbone.decoder.blocks[1].mlp.c_proj.weight.mul_(0.5)


def another_head(model: MultiExitCaptioner) -> None:
    head: Any = model.decoder.exits[-1]
    head.norm.weight = torch.nn.Parameter(head.norm.weight + torch.randn_like(head.norm.weight))


def trained(model: MultiExitCaptioner) -> None:
    model.train()
    halved(model)
    model.eval()


def moved(model: MultiExitCaptioner) -> None:
    model.double().float()
    halved(model)


def another_module(model: MultiExitCaptioner) -> None:
    block: Any = model.decoder.backbone.decoder.blocks[0]
    block.mlp = torch.nn.Sequential(block.mlp, torch.nn.Tanh()).eval()


def hooked(model: MultiExitCaptioner) -> None:
    block: Any = model.decoder.backbone.decoder.blocks[2]
    block.mlp.register_forward_hook(lambda module, given, output: 2 * output)


def another_forward(model: MultiExitCaptioner) -> None:
    mlp: Any = model.decoder.backbone.decoder.blocks[2].mlp
    forward = mlp.forward
    mlp.forward = lambda hidden: 2 * forward(hidden)


def hooked_everywhere(model: MultiExitCaptioner) -> None:
    def doubled(module: torch.nn.Module, given: Any, output: Any) -> Any:
        return 2 * output if module is model.decoder.backbone.decoder.blocks[2].mlp.act else None

    model.global_hook = torch.nn.modules.module.register_module_forward_hook(doubled)


CHANGES = [hooked_everywhere, halved, another_head, trained, moved, another_module, hooked, another_forward]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_no_answer_is_stale_after_the_network_changes(change: Callable[[MultiExitCaptioner], None]) -> None:
    model = captioner(exit_layers=FEW)
    before, _ = decode(model, BEEM, images(2), max_length=3)
    assert is_compiled(model)
    change(model)
    try:
        after, expected = decode(model, BEEM, images(2), max_length=3)
    finally:
        if hasattr(model, "global_hook"):
            model.global_hook.remove()  # type: ignore[operator, union-attr]
    same(after, expected)
    scores = lambda decoded: [caption.score for caption in decoded.captions]  # noqa: E731
    assert scores(after) != scores(before)
    assert is_compiled(model) == (change in (halved, another_head, trained, moved))


def test_no_answer_is_stale_after_a_hook_is_removed() -> None:
    model = captioner()
    handle = model.decoder.exits[2].register_forward_hook(lambda *given: None)
    decode(model, BEEM)
    assert not is_compiled(model)
    handle.remove()
    same(*decode(model, BEEM))
    assert is_compiled(model)


def test_no_answer_is_stale_after_the_policy_changes() -> None:
    model, rule = captioner(), policy(type="max_probability", thresholds=0.3)
    same(*decode(model, rule))
    rule.min_exit = 4  # type: ignore[attr-defined]
    same(*decode(model, rule))
    same(*decode(model, policy(type="max_probability", thresholds=0.3)))
    assert len(model.decoding.compiled.decoders) == 2


def test_ways_to_fill_in_skipped_blocks_do_not_mix() -> None:
    model = captioner(exit_layers=FEW)
    for skipped in (*SKIPPED, "propagate"):
        model.decoding.skipped_blocks = SkippedBlocks.from_params({"type": skipped})
        same(*decode(model, BEEM))
    assert len(model.decoding.compiled.decoders) == 3


def test_networks_in_turn_do_not_mix() -> None:
    model, other = captioner(exit_layers=FEW), captioner(exit_layers=FEW)
    halved(other)
    other.decoding = model.decoding
    for one in (model, other, model):
        same(*decode(one, BEEM))


def test_training_and_copies_drop_what_is_compiled() -> None:
    model = captioner(exit_layers=FEW)
    decode(model, BEEM)
    assert is_compiled(model) and not is_compiled(copy.deepcopy(model))
    model.train()
    assert not is_compiled(model)


def test_compiled_decoders_that_are_not_used_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_captions, "MAX_DECODERS", 2)
    model = captioner(exit_layers=FEW)
    for threshold in (0.2, 0.4, 0.6):
        decode(model, {"type": "max_probability", "thresholds": threshold}, images(1), max_length=2)
    assert len(model.decoding.compiled.decoders) == 2


def test_what_fails_is_decoded_on_the_plain_path(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*given: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr("beem_plugin.decoding.mixed_depths.mixed_greedy.advance", fails)
    model = captioner(exit_layers=FEW)
    same(*decode(model, BEEM))
    same(*decode(model, BEEM))
    reason = "captions are decoded on the plain path from now on: operation not permitted when stream is capturing"
    assert [record.message for record in caplog.records if "plain path" in record.message] == [f"Beem: {reason}"]


def test_launches_without_an_end_are_noticed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("beem_plugin.decoding.mixed_depths.mixed_greedy.advance", lambda *given: None)
    same(*decode(captioner(), {"type": "final"}, images(1), max_length=2))
    assert "captions have not ended after" in caplog.text


def test_buffers_that_would_be_too_large_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_captions, "MAX_BYTES", 1000)
    model = captioner()
    same(*decode(model, BEEM, images(1)))
    assert not is_compiled(model)


@pytest.mark.parametrize("changed", ["", "head", "activation", "norm", "embedding", "precision"])
def test_networks_that_the_kernels_do_not_compute_are_found_out(changed: str) -> None:
    network: Any = settled(decoder={"head": "linear_shortcut"} if changed == "head" else {}).decoder
    block = network.backbone.decoder.blocks[2]
    if changed == "activation":
        block.mlp.act = torch.nn.GELU()
    if changed == "norm":
        block.ln_2 = torch.nn.LayerNorm(32, elementwise_affine=False)
    if changed == "embedding":
        network.backbone.decoder.language_model.transformer.wte = torch.nn.EmbeddingBag(50, 32)
    if changed == "precision":
        block.mlp.double()
    for sees_images in (True, False):
        assert (DecoderWeights.unsupported(network, sees_images) is None) == (not changed)


def test_rounding_does_not_decide_what_a_gpu_is_compared_with() -> None:
    model, pixels = settled().double(), settled_images()
    model.decoding = CaptionDecoding(max_length=LENGTH)
    expected = [model.decode({"pixel_values": pixels}, policy=policy(**rule)).captions for rule in RULES]
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():  # some fifty times the rounding of a float32
        for parameter in other.decoder.parameters():
            parameter.mul_(1 + 3e-6 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    for rule, wanted in zip(RULES, expected, strict=True):
        found = other.decode({"pixel_values": pixels}, policy=policy(**rule)).captions
        assert [(c.tokens, c.exits) for c in found] == [(c.tokens, c.exits) for c in wanted]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_graphs_on_a_gpu(head: str, caplog: pytest.LogCaptureFixture) -> None:
    model = captioner(head=head).cuda()
    model.decoding.compiled = CompiledCaptions()
    pixels = settled_images().to("cuda", torch.float32)
    for skipped in (*SKIPPED, *SKIPPED):
        model.decoding.skipped_blocks = SkippedBlocks.from_params({"type": skipped})
        for rule in RULES:
            same(*decode(model, rule, pixels))
            gc.collect()
            # Memory that a graph reads and that is not held would be given away, and written over here.
            torch.cuda.empty_cache()
            for size in (1, 10, 100, 1000, 10_000, 100_000) * 4:
                torch.full((size,), float("nan"), device="cuda")
    assert len(model.decoding.compiled.decoders) == min(3 * len(RULES), compiled_captions.MAX_DECODERS)
    assert not [record for record in caplog.records if "plain path" in record.message]
