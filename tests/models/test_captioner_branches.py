"""Captioners whose exits have branches and whose hidden states fork."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from beem_plugin.calibration.replay import replay
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.decoding import CaptionDecoding, SkippedBlocks
from beem_plugin.exits.branches import Branch
from beem_plugin.models.caption_trace import trace_captions
from tests.decoding.slow_decoder import slow_caption
from tests.decoding.test_decoding import SKIPPED
from tests.tiny_captioner import BOS, batch, captioner, images, policy

ADAPTER = {"type": "adapter", "width": 8}
TRANSFORMER = {"type": "transformer", "width": 8, "num_heads": 2}


def awake(model: Any) -> Any:
    torch.manual_seed(5)
    for head in list(model.decoder.exits)[:-1]:
        torch.nn.init.normal_(head.branch.up.weight, std=0.5)
    return model


@pytest.mark.parametrize("branch", [ADAPTER, {"type": "mlp", "width": 6}, TRANSFORMER])
@pytest.mark.parametrize("head", ["tied", "low_rank", "past_future"])
def test_training_moves_branches_and_decoding_reads_them(branch: dict[str, Any], head: str) -> None:
    keys = {"head": {"type": head, **({"rank": 8} if head == "low_rank" else {})}}
    objective = "imitation" if head == "past_future" else "weighted_distillation"
    plain = captioner(decoder=keys, objective=objective)
    model = captioner(decoder={**keys, "branch": branch, "fork": "projected"}, objective=objective)
    hidden = torch.randn(7, 32)
    width = branch["width"]
    assert model.decoder.head_macs(1) == plain.decoder.head_macs(1)
    inside = {"adapter": 0, "mlp": 4 * width * width, "transformer": 8 * width * width + 2 * 3 * width}
    assert model.decoder.branch_macs(1, tokens=3) == 2 * 32 * width + inside[str(branch["type"])]
    assert torch.equal(model.decoder.head(1).features(hidden, {}), plain.decoder.head(1).features(hidden, {}))
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [h.branch.up.weight.clone() for h in list(model.decoder.exits)[:-1]]  # type: ignore[union-attr, operator]
    model(**batch())["loss"].backward()
    optimizer.step()
    for changed, weight in zip(list(model.decoder.exits)[:-1], before, strict=True):
        assert not torch.equal(changed.branch.up.weight, weight)  # type: ignore[union-attr]


@pytest.mark.parametrize("branch", [ADAPTER, TRANSFORMER])
@pytest.mark.parametrize("beams", [1, 3])
def test_captions_are_those_of_replay_on_their_own_words(beams: int, branch: dict[str, Any]) -> None:
    rule = {"type": "max_probability", "thresholds": 0.5}
    model = awake(captioner(decoder={"branch": branch, "exit_layers": [2, 4, 6]})).double()
    model.decoding = CaptionDecoding.from_params(
        {"skipped_blocks": {"type": "recompute"}, "num_beams": beams, "max_length": 8}
    )
    pixels = images().double()
    seen = set()
    for caption, image in zip(model.generate({"pixel_values": pixels}, policy=policy(**rule)), pixels):
        tokens = torch.tensor([[BOS, *caption.tokens]])
        forced = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "pixel_values": image.unsqueeze(0)}
        decisions = replay(policy(**rule), trace_captions(model, [forced], "own words"))
        assert decisions.exits.tolist() == caption.exits
        seen.update(caption.exits)
        if beams == 1:
            assert decisions.predictions.tolist() == caption.tokens
    assert len(seen) > 1


@pytest.mark.parametrize("head", ["tied", "past_future"])
@pytest.mark.parametrize("skipped", SKIPPED)
def test_a_branch_attends_to_all_earlier_tokens(skipped: str, head: str) -> None:
    """Captions, exits and costs with transformer branches, against a slow decoder and the operations that run."""
    rules: list[dict[str, Any]] = [
        {"type": "max_probability", "thresholds": 0.5},
        {"type": "patience", "patience": 1},
        {"type": "similarity", "thresholds": 0.9},
        {"type": "fixed_exit", "exit": 2},
    ]
    keys = {"branch": TRANSFORMER, "exit_layers": [1, 3, 4, 6], "head": head}
    model, plain = awake(captioner(decoder=keys)).double(), captioner(decoder={**keys, "branch": None}).double()
    pixels = images(3).double()
    changed = 0
    for one in (model, plain):
        one.decoding = CaptionDecoding(max_length=6, skipped_blocks=SkippedBlocks.from_params({"type": skipped}))
    for rule in rules:
        found = model.generate({"pixel_values": pixels}, policy=policy(**rule))
        for caption, image in zip(found, pixels):
            assert (caption.tokens, caption.exits) == slow_caption(model, image, policy(**rule), skipped, 6)
        without = plain.generate({"pixel_values": pixels}, policy=policy(**rule))
        changed += sum(caption.tokens != other.tokens for caption, other in zip(found, without))
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            decoded = model.decode({"pixel_values": pixels[:1]}, policy=policy(**rule))
        # `recompute` runs over all tokens up to the last one that it completes.
        tolerance = 0.03 if skipped == "recompute" else 1e-9
        assert counter.get_total_flops() / 2 == pytest.approx(decoded.macs.total, rel=tolerance)
    assert changed > 0


def test_rules_that_read_all_probabilities_decode_branches_alone_as_in_a_batch() -> None:
    model, pixels = awake(captioner(decoder={"branch": TRANSFORMER, "head": "untied"})).double(), images().double()
    rule = {"type": "voting", "thresholds": 0.9, "min_exit": 2}
    for caption, image in zip(model.generate({"pixel_values": pixels}, policy=policy(**rule)), pixels):
        alone = model.generate({"pixel_values": image.unsqueeze(0)}, policy=policy(**rule))[0]
        assert (caption.tokens, caption.exits) == (alone.tokens, alone.exits)


class Mixing(Branch):
    mixes_tokens = True

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 4)


def test_a_branch_of_ones_own_that_mixes_tokens_is_refused() -> None:
    Branch.register("mixing", exist_ok=True)(Mixing)
    with pytest.raises(ConfigurationError, match="branch: found 'mixing', which reads other tokens"):
        captioner(decoder={"branch": "mixing"})


def test_forks_act_on_the_decoders_blocks() -> None:
    """With the exits' factor 0, block 1 is trained by the last exit alone."""

    def gradient(fork: Any, objective: str) -> torch.Tensor:
        model = captioner(decoder={"fork": fork, "exit_layers": [2, 6]}, objective=objective)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.train()
        model(**batch())["loss"].backward()
        block = model.decoder.backbone.decoder.language_model.transformer.h[0]
        return block.attn.c_proj.weight.grad  # type: ignore[union-attr, return-value]

    summed = {"type": "early_exits", "include_last": True, "layer_weights": "uniform", "reduction": "sum"}
    found = gradient({"type": "scaled", "exit": 0.0}, summed)  # type: ignore[arg-type]
    torch.testing.assert_close(found, gradient("sum", "final_exit"), atol=1e-5, rtol=1e-4)


def test_schedules_of_the_decoder_advance() -> None:
    fork = {"type": "scaled", "exit": [1.0, 0.0]}
    keys = {"fork": fork, "layer_dropout": {"max_rate": 0.2, "schedule": "exponential"}}
    model = captioner(decoder=keys)
    model.start_step(9, 10)
    assert model.decoder.fork.factors.tolist() == [0.0, 1.0]  # type: ignore[operator, union-attr]
    rates = model.decoder.layer_dropout.rates  # type: ignore[union-attr]
    assert float(rates[0]) == 0 and float(rates[-1]) == pytest.approx(0.2)
    assert bool(torch.isfinite(model.train()(**batch())["loss"]))
