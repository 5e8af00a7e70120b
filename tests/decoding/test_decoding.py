from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from beem_plugin.calibration.replay import replay
from beem_plugin.common.errors import ConfigurationError, NotCalibratedError
from beem_plugin.decoding import CaptionDecoding, SkippedBlocks
from beem_plugin.decoding.meter import full_depth
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.models.caption_trace import trace_captions
from tests.decoding.slow_decoder import slow_caption
from tests.tiny_captioner import BOS, EOS, captioner, images, policy

NEVER = {"type": "max_probability", "thresholds": "never"}
RULES: list[dict[str, Any]] = [
    {"type": "max_probability", "thresholds": 0.5},
    {"type": "margin", "thresholds": [0.2, 0.9, "never", 0.3, 0.1]},
    {"type": "entropy", "thresholds": 1.0},
    {"type": "similarity", "thresholds": 0.9},
    {"type": "patience", "patience": 1},
    {"type": "beem", "weights": "cost", "thresholds": 0.3},
    {"type": "decaying_threshold", "policy": {"type": "margin", "thresholds": 0.5}, "max_length": 12},
    {"type": "fixed_exit", "exit": 3},
]
SKIPPED = ("propagate", "recompute", "copy")


def decoding(skipped: str = "propagate", **keys: Any) -> CaptionDecoding:
    return CaptionDecoding(max_length=12, skipped_blocks=SkippedBlocks.from_params({"type": skipped}), **keys)


def hf_captions(model: MultiExitCaptioner, pixels: Tensor, **keys: Any) -> list[list[int]]:
    """What transformers' own `generate` says: up to the end token, without the start."""
    generated = model.decoder.backbone.transformer_model.generate(  # type: ignore[union-attr, operator]
        pixel_values=pixels,
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=EOS,
        pad_token_id=EOS,
        decoder_start_token_id=BOS,
        **keys,
    )
    rows = [row[1:] for row in generated.tolist()]
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]


@pytest.mark.parametrize("seed", [0, 4])
@pytest.mark.parametrize("beams", [1, 3, 5])
@pytest.mark.parametrize("rule", [NEVER, {"type": "final"}])
def test_a_policy_that_never_exits_decodes_as_transformers(seed: int, beams: int, rule: dict[str, Any]) -> None:
    model = captioner(seed, decoding={"skipped_blocks": "recompute", "max_length": 12})
    pixels = images(8, seed)
    ours = model.generate({"pixel_values": pixels}, num_beams=beams, policy=policy(**rule))
    assert [caption.tokens for caption in ours] == hf_captions(model, pixels, num_beams=beams)
    assert all(set(caption.exits) == {6} for caption in ours)
    assert len({len(caption.tokens) for caption in ours}) > 1  # some leave the batch before others


@pytest.mark.parametrize("length_penalty", [0.0, 2.0, -1.0])
@pytest.mark.parametrize("early_stopping", [True, False])
def test_beam_options_mean_what_they_mean_in_transformers(length_penalty: float, early_stopping: bool) -> None:
    model, pixels = captioner(4), images(8, 4)
    keys: dict[str, Any] = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    model.decoding = decoding(num_beams=4, **keys)
    ours = model.generate({"pixel_values": pixels})
    assert [caption.tokens for caption in ours] == hf_captions(model, pixels, num_beams=4, **keys)


@pytest.mark.parametrize("skipped", SKIPPED)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["type"])
@pytest.mark.parametrize("exit_layers", [None, [2, 3, 6]])
def test_decoding_equals_a_slow_decoder_that_keeps_everything(
    skipped: str, rule: dict[str, Any], exit_layers: list[int] | None
) -> None:
    if exit_layers is not None and isinstance(rule.get("thresholds"), list):
        rule = {**rule, "thresholds": 0.4}
    model, pixels = captioner(decoder={"exit_layers": exit_layers}).double(), images(3).double()
    model.decoding = decoding(skipped)
    found = model.generate({"pixel_values": pixels}, policy=policy(**rule))
    for caption, image in zip(found, pixels):
        assert (caption.tokens, caption.exits) == slow_caption(model, image, policy(**rule), skipped, 12)


@pytest.mark.parametrize("rule", [*RULES, {"type": "voting", "thresholds": 0.9, "min_exit": 2}], ids=str)
@pytest.mark.parametrize("keys", [{"exit_layers": [1, 3, 4, 6]}, {"shortlist": 10}], ids=str)
def test_heads_that_look_back_do_so_whoever_was_asked(rule: dict[str, Any], keys: dict[str, Any]) -> None:
    if isinstance(rule.get("thresholds"), list):
        rule = {**rule, "thresholds": 0.4}
    model, pixels = captioner(decoder={"head": "past_future", **keys}), images(3)
    heads: list[Any] = list(model.decoder.exits)
    with torch.no_grad():
        for head in heads[:-1]:  # imitations and gates that are not those they start as
            for parameter in [*head.imitators.parameters(), *head.gate.parameters()]:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model, pixels = model.double(), pixels.double()
    model.decoding = decoding()
    found = model.decode({"pixel_values": pixels}, policy=policy(**rule))
    for caption, image in zip(found.captions, pixels):
        if rule["type"] not in ("voting",):  # it picks another exit's word
            expected = slow_caption(model, image, policy(**rule), "propagate", 12)
            assert (caption.tokens, caption.exits) == expected
        alone = model.generate({"pixel_values": image.unsqueeze(0)}, policy=policy(**rule))[0]
        assert (caption.tokens, caption.exits) == (alone.tokens, alone.exits)
    assert {number for caption in found.captions for number in caption.exits} != {model.num_exits}


@pytest.mark.parametrize("skipped", SKIPPED)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("rule", [*RULES, {"type": "voting", "thresholds": 0.9, "min_exit": 2}], ids=str)
def test_a_batch_equals_one_by_one(skipped: str, beams: int, rule: dict[str, Any]) -> None:
    # In double precision, as kernels add up in another order for another batch.
    model, pixels = captioner().double(), images(4).double()
    model.decoding = decoding(skipped, num_beams=beams)
    together = model.generate({"pixel_values": pixels}, policy=policy(**rule))
    for caption, image in zip(together, pixels):
        alone = model.generate({"pixel_values": image.unsqueeze(0)}, policy=policy(**rule))[0]
        assert (caption.tokens, caption.exits) == (alone.tokens, alone.exits)
        assert caption.score == pytest.approx(alone.score, abs=1e-4)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["type"])
@pytest.mark.parametrize("head", ["tied", "past_future"])
def test_recompute_attends_to_what_full_depth_would(beams: int, rule: dict[str, Any], head: str) -> None:
    """Replayed on a teacher-forced trace of its own words, the policy leaves at the same exits and says the same."""
    model, pixels = captioner(decoder={"head": head}).double(), images().double()
    model.decoding = decoding("recompute", num_beams=beams)
    for caption, image in zip(model.generate({"pixel_values": pixels}, policy=policy(**rule)), pixels):
        tokens = torch.tensor([[BOS, *caption.tokens]])
        forced = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "pixel_values": image.unsqueeze(0)}
        decisions = replay(policy(**rule), trace_captions(model, [forced], "own words"))
        assert decisions.exits.tolist() == caption.exits
        if beams == 1:
            assert decisions.predictions.tolist() == caption.tokens


def test_captions_end_at_the_end_token_or_the_greatest_length() -> None:
    model = captioner(4)
    for beams in (1, 3):
        for caption in model.generate({"pixel_values": images(8, 4)}, max_length=5, num_beams=beams):
            assert EOS not in caption.tokens[:-1] and len(caption.tokens) <= 5
            assert len(caption.tokens) == 5 or caption.tokens[-1] == EOS
            assert len(caption.exits) == len(caption.log_probabilities) == len(caption.tokens)
            assert caption.score == pytest.approx(sum(caption.log_probabilities))


def test_a_shortlist_that_holds_all_words_changes_nothing_and_a_short_one_costs_less() -> None:
    pixels, rule = {"pixel_values": images()}, {"type": "max_probability", "thresholds": 0.7}
    plain = captioner().decode(pixels, policy=policy(**rule))
    whole = captioner(decoder={"shortlist": 50}).decode(pixels, policy=policy(**rule))
    assert [caption.exits for caption in whole.captions] == [caption.exits for caption in plain.captions]
    assert [caption.tokens for caption in whole.captions] == [caption.tokens for caption in plain.captions]
    never = captioner(decoder={"shortlist": 4}).decode(pixels, policy=policy(**NEVER | {"thresholds": 0.9999}))
    full = captioner().decode(pixels, policy=policy(**NEVER | {"thresholds": 0.9999}))
    assert never.macs.heads < full.macs.heads


@pytest.mark.parametrize("skipped", SKIPPED)
@pytest.mark.parametrize("rule", [{"type": "final"}, *RULES], ids=lambda rule: rule["type"])
@pytest.mark.parametrize("head", ["tied", "past_future"])
def test_counted_macs_are_those_that_run(skipped: str, rule: dict[str, Any], head: str) -> None:
    model = captioner(decoder={"head": head})
    model.decoding = decoding(skipped)
    image = {"pixel_values": images(1)}
    model.decode(image, max_length=1)  # counts the image encoder, which runs it
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        decoded = model.decode(image, policy=policy(**rule), max_length=7)
    # `recompute` runs over all words up to the last one that it completes, and masks what they may not see.
    tolerance = 0.02 if skipped == "recompute" else 1e-9
    assert counter.get_total_flops() / 2 == pytest.approx(decoded.macs.total, rel=tolerance)


def test_full_depth_macs_are_those_of_a_network_without_exits() -> None:
    model = captioner()
    decoded = model.decode({"pixel_values": images()}, policy=policy(type="final"))
    expected = full_depth(model.decoder, [len(caption.tokens) for caption in decoded.captions], patches=5)
    assert decoded.macs.decoder == expected.decoder


def test_what_a_policy_does_not_look_at_is_not_computed() -> None:
    pixels = {"pixel_values": images()}
    words = lambda decoded: sum(len(caption.tokens) for caption in decoded.captions)  # noqa: E731
    model = captioner()
    similarity = model.decode(pixels, policy=policy(type="similarity", thresholds=0.9))
    assert similarity.macs.heads == words(similarity) * 50 * 32  # one head a word
    fixed = model.decode(pixels, policy=policy(type="fixed_exit", exit=2))
    assert fixed.macs.heads == words(fixed) * 50 * 32 and fixed.macs.skipped == 0


def test_what_cannot_be_decoded_is_said() -> None:
    model = captioner()
    pixels = {"pixel_values": images(2)}
    with pytest.raises(ConfigurationError, match="no pixel_values"):
        model.generate({})
    with pytest.raises(ConfigurationError, match="max_length: found 40, allowed: 1 to 32"):
        model.generate(pixels, max_length=40)
    with pytest.raises(NotCalibratedError):
        model.generate(pixels, policy=policy(type="beem"))
    with pytest.raises(ConfigurationError, match="needs the signals"):
        model.generate(pixels, policy=policy(type="gate"))
    assert model.generate({"pixel_values": images(0)}) == []


@pytest.mark.parametrize(
    ("key", "value", "allowed"), [("max_length", 0, "1 or more"), ("temperature", -1.0, "0 or more")]
)
def test_a_falling_threshold_names_the_key_that_is_wrong(key: str, value: float, allowed: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{key}: found {value}, allowed: {allowed}$"):
        policy(type="decaying_threshold", policy={"type": "margin", "thresholds": 0.5}, **{key: value})


@pytest.mark.parametrize("key", ["max_length", "num_beams"])
def test_a_search_names_the_number_that_is_wrong(key: str) -> None:
    model = captioner()
    with pytest.raises(ConfigurationError, match=f"^{key}: found 0, allowed: 1 or more$"):
        model.decode({"pixel_values": images(1)}, **{key: 0})
