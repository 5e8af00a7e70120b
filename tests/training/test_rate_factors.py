"""Learning rates by place in the network, by parameter name."""

from __future__ import annotations

from typing import Any

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.common.errors import ConfigurationError
from tests.objectives.tiny_model import tiny_model
from tests.training.test_optimization import make_optimizer, tiny_model as model_without_backbone


def rates(**config: Any) -> dict[str, tuple[float, float]]:
    """Rate and weight decay of every parameter of a three-layer BERT with exits and branches."""
    model = tiny_model("weighted_distillation", branch="adapter")
    groups = [[["bias|[Nn]orm"], {"weight_decay": 0.0}], [["exits.2"], {"lr": 0.5}]]
    groups[1][0] = [r"exits\.2.*weight"]
    optimizer = make_optimizer(model, type="adamw", lr=1.0, parameter_groups=groups, **config)
    found = {p: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
    assert len(found) == len(list(model.parameters()))
    return {name: found[parameter] for name, parameter in model.named_parameters()}


def test_heads_have_a_multiple_of_the_rate_and_groups_keep_their_options() -> None:
    found = rates(heads_lr_factor=4.0)
    for name, (rate, decay) in found.items():
        base = 0.5 if name.startswith("encoder.exits.2") and name.endswith("weight") else 1.0
        assert rate == pytest.approx(base if ".backbone." in name else 4 * base), name
        assert decay == (0.0 if "bias" in name or "norm" in name.lower() else 0.01), name


def test_rates_fall_with_the_distance_from_the_top() -> None:
    found = rates(layer_lr_decay=0.5)
    for name, (rate, _) in found.items():
        if "embeddings" in name:
            assert rate == pytest.approx(0.125), name
        for layer in range(3):
            if f"layer.{layer}." in name:
                assert rate == pytest.approx(0.5 ** (2 - layer)), name


@pytest.mark.parametrize("factors", [{"heads_lr_factor": 0.0}, {"layer_lr_decay": -1.0}])
def test_factors_out_of_range_are_named(factors: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(factors))}: found .*allowed: above 0"):
        rates(**factors)


def test_models_without_a_backbone_and_optimizers_without_a_rate_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no parameter named `backbone"):
        make_optimizer(model_without_backbone(), type="adam", heads_lr_factor=2.0)
    with pytest.raises(ConfigurationError, match="lr null, allowed: a number"):
        model = tiny_model("weighted_distillation")
        make_optimizer(model, type="huggingface_adafactor", heads_lr_factor=2.0)
