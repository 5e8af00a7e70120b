"""Captioners whose exits have branches and whose hidden states fork."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from beem_plugin.calibration.replay import replay
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.decoding import CaptionDecoding
from beem_plugin.models.caption_trace import trace_captions
from tests.tiny_captioner import BOS, batch, captioner, images, policy

ADAPTER = {"type": "adapter", "width": 8}


def awake(model: Any) -> Any:
    torch.manual_seed(5)
    for head in list(model.decoder.exits)[:-1]:
        torch.nn.init.normal_(head.branch.up.weight, std=0.5)
    return model


@pytest.mark.parametrize("branch", [ADAPTER, {"type": "mlp", "width": 6}])
@pytest.mark.parametrize("head", ["tied", "low_rank", "past_future"])
def test_training_moves_branches_and_decoding_reads_them(branch: dict[str, Any], head: str) -> None:
    keys = {"head": {"type": head, **({"rank": 8} if head == "low_rank" else {})}}
    objective = "imitation" if head == "past_future" else "weighted_distillation"
    plain = captioner(decoder=keys, objective=objective)
    model = captioner(decoder={**keys, "branch": branch, "fork": "projected"}, objective=objective)
    hidden = torch.randn(7, 32)
    cost = model.decoder.head_macs(1) - plain.decoder.head_macs(1)
    width = branch["width"]
    assert cost == 2 * 32 * width + (4 * width * width if branch["type"] == "mlp" else 0)
    assert torch.equal(model.decoder.exit_features(1, hidden, {}), plain.decoder.exit_features(1, hidden, {}))
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [h.branch.up.weight.clone() for h in list(model.decoder.exits)[:-1]]  # type: ignore[union-attr, operator]
    model(**batch())["loss"].backward()
    optimizer.step()
    for changed, weight in zip(list(model.decoder.exits)[:-1], before, strict=True):
        assert not torch.equal(changed.branch.up.weight, weight)  # type: ignore[union-attr]


@pytest.mark.parametrize("beams", [1, 3])
def test_captions_are_those_of_replay_on_their_own_words(beams: int) -> None:
    rule = {"type": "max_probability", "thresholds": 0.5}
    model = awake(captioner(decoder={"branch": ADAPTER, "exit_layers": [2, 4, 6]})).double()
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


def test_a_branch_that_mixes_tokens_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="branch: found 'transformer', which reads other tokens"):
        captioner(decoder={"branch": {"type": "transformer", "width": 8}})


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
