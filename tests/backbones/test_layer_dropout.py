"""Layer dropout against its formula, in networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from beem_plugin.backbones.layer_dropout import LayerDropout
from beem_plugin.common.errors import ConfigurationError
from tests.objectives.tiny_model import tiny_batch, tiny_model


def test_rates_grow_with_depth_and_time() -> None:
    constant = LayerDropout(0.3)
    constant.bind(4)
    expected = [0.3 * (2 ** (layer / 3) - 1) for layer in range(4)]
    assert constant.rates.tolist() == pytest.approx(expected)
    growing = LayerDropout(0.3, "exponential")
    growing.bind(4)
    rates = growing.rates
    for step, scale in ((0, 0.0), (5, 2**0.5 - 1), (10, 1.0), (12, 1.0)):
        growing.start_step(step, 11)
        assert rates.tolist() == pytest.approx([scale * rate for rate in expected])
    assert growing.rates is rates  # updated in place


def test_samples_skip_a_block_at_its_rate_and_none_does_in_evaluation() -> None:
    torch.manual_seed(0)
    dropout = LayerDropout(0.4)
    dropout.bind(3)
    before, after = torch.zeros(20000, 2, 3), torch.ones(20000, 2, 3)
    for number, rate in ((1, 0.0), (2, 0.4 * (2**0.5 - 1)), (3, 0.4)):
        found = dropout(number, before, after)
        kept = found[:, 0, 0]
        assert torch.equal(found, kept.view(-1, 1, 1).expand_as(found))  # whole samples
        assert float(1 - kept.mean()) == pytest.approx(rate, abs=0.015)
    assert dropout.eval()(3, before, after) is after


def test_a_network_that_skips_all_it_can_gives_the_exits_the_same_states() -> None:
    model = tiny_model("weighted_distillation", layer_dropout={"max_rate": 0.5}).train()
    dropout: Any = model.encoder.layer_dropout
    dropout.rates[1:] = 1.0
    hidden = model.encoder.outputs(tiny_batch()).hidden_states
    assert torch.equal(hidden[0], hidden[1]) and torch.equal(hidden[1], hidden[2])
    model.eval()
    plain = tiny_model("weighted_distillation").eval()
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        batch = tiny_batch()
        assert torch.equal(model(**batch)["logits"], plain(**batch)["logits"])


def test_every_parameter_has_a_gradient_even_where_a_block_is_skipped_by_all() -> None:
    """Distributed training waits for the gradient of every parameter."""
    model = tiny_model("weighted_distillation", layer_dropout={"max_rate": 0.5}).train()
    dropout: Any = model.encoder.layer_dropout
    dropout.rates.fill_(1.0)
    model(**tiny_batch())["loss"].backward()
    blocks = model.encoder.backbone.transformer_model.encoder.layer  # type: ignore[union-attr]
    assert all(parameter.grad is not None for parameter in blocks.parameters())


@pytest.mark.parametrize("keys", [{"max_rate": 1.0}, {"max_rate": -0.1}, {"schedule": "linear"}])
def test_options_out_of_range_are_named(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"layer_dropout.{next(iter(keys))}: found"):
        tiny_model("weighted_distillation", layer_dropout=keys)
