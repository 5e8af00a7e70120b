from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from beem_plugin.backbones.renamed_weights import renamed

PREFIX = "decoder.backbone.transformer_model.encoder."

# Names of the same parameters in the order of releases, the newest last.
DINOV2 = [
    ("encoder.layer.0.attention.attention.query.weight", "encoder.layer.0.attention.q_proj.weight"),
    ("encoder.layer.0.attention.attention.key.bias", "encoder.layer.0.attention.k_proj.bias"),
    ("encoder.layer.0.attention.attention.value.weight", "encoder.layer.0.attention.v_proj.weight"),
    ("encoder.layer.0.attention.output.dense.weight", "encoder.layer.0.attention.o_proj.weight"),
    ("encoder.layer.0.norm1.weight", "encoder.layer.0.norm1.weight"),
    ("encoder.layer.0.mlp.weights_out.weight", "encoder.layer.0.mlp.down_proj.weight"),
]
VIT = [
    ("encoder.layer.10.attention.attention.query.weight", "layers.10.attention.q_proj.weight"),
    ("encoder.layer.10.attention.output.dense.bias", "layers.10.attention.o_proj.bias"),
    ("encoder.layer.10.intermediate.dense.weight", "layers.10.mlp.fc1.weight"),
    ("encoder.layer.10.output.dense.bias", "layers.10.mlp.fc2.bias"),
    ("encoder.layer.10.layernorm_before.weight", "layers.10.layernorm_before.weight"),
]
BEIT = [
    ("encoder.layer.0.lambda_1", "layers.0.lambda_1"),
    (
        "encoder.layer.0.attention.attention.relative_position_bias.relative_position_bias_table",
        "layers.0.relative_position_bias.relative_position_bias_table",
    ),
    (
        "encoder.relative_position_bias.relative_position_bias_table",
        "shared_position_bias.relative_position_bias_table",
    ),
]
SWIN = [
    ("encoder.layers.0.blocks.1.attention.self.query.weight", "encoder.layers.0.blocks.1.attention.q_proj.weight"),
    ("encoder.layers.0.blocks.1.attention.output.dense.bias", "encoder.layers.0.blocks.1.attention.o_proj.bias"),
    ("encoder.layers.0.blocks.1.output.dense.bias", "encoder.layers.0.blocks.1.mlp.fc2.bias"),
    (
        "encoder.layers.0.blocks.1.attention.self.relative_position_bias_table",
        "encoder.layers.0.blocks.1.attention.relative_position_bias.relative_position_bias_table",
    ),
]
OURS = ["decoder.exits.0.norm.weight", "decoder.exits.0.output.dense.weight"]


def states(pairs: list[tuple[str, str]]) -> list[dict[str, Tensor]]:
    """The same values under the older and the newer names, with parameters of unchanged names."""
    values = [torch.full((3,), float(number)) for number in range(len(pairs) + len(OURS))]
    return [dict(zip([*(PREFIX + pair[age] for pair in pairs), *OURS], values)) for age in (0, 1)]


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("pairs", [DINOV2, VIT, BEIT, SWIN], ids=["dinov2", "vit", "beit", "swin"])
def test_names_are_mapped_between_releases_in_both_directions(pairs: list[tuple[str, str]]) -> None:
    for given, model in itertools.product(states(pairs), repeat=2):
        empty = {name: torch.zeros_like(value) for name, value in model.items()}
        assert same(renamed(given, empty), model)


def test_a_split_matrix_is_split_and_joined() -> None:
    whole = torch.arange(12.0).view(6, 2)
    fused = {f"{PREFIX}encoder.layer.0.mlp.weights_in.weight": whole}
    split = {
        f"{PREFIX}encoder.layer.0.mlp.gate_proj.weight": whole[:3],
        f"{PREFIX}encoder.layer.0.mlp.up_proj.weight": whole[3:],
    }
    assert same(renamed(fused, split), split)
    assert same(renamed(split, fused), fused)


def test_half_a_matrix_is_not_dropped() -> None:
    fused = {f"{PREFIX}layer.mlp.weights_in.weight": torch.arange(4.0)}
    gate = {f"{PREFIX}layer.mlp.gate_proj.weight": torch.zeros(2)}
    assert fused.keys() <= renamed(fused, gate).keys()
    assert same(renamed(gate, fused), gate)


def test_weights_without_a_counterpart_keep_their_names() -> None:
    old, new = states(DINOV2)
    extra = {f"{PREFIX}encoder.layer.7.attention.attention.query.weight": torch.ones(3), "other": torch.ones(1)}
    assert same(renamed({**old, **extra}, new), {**new, **extra})
    lacking = {name: value for name, value in old.items() if "query" not in name}
    assert same(renamed(lacking, new), {name: value for name, value in new.items() if "q_proj" not in name})


def test_both_names_of_one_parameter_are_not_merged() -> None:
    old, new = states(DINOV2)
    both = {**old, **new}
    assert same(renamed(both, new), both)
    found = renamed({**new, f"{PREFIX}encoder.layer.0.attention.self.query.weight": torch.ones(3)}, old)
    assert found.keys() - old.keys() == {f"{PREFIX}encoder.layer.0.attention.self.query.weight"}


def test_only_names_of_an_image_encoder_are_translated() -> None:
    text = {"encoder.backbone.layer.0.attention.self.query.weight": torch.ones(2)}
    model = {"encoder.backbone.layer.0.attention.q_proj.weight": torch.zeros(2)}
    assert same(renamed(text, model), text)


def test_a_computed_table_is_taken_from_the_model() -> None:
    name = f"{PREFIX}encoder.layers.0.blocks.0.attention.self.relative_position_index"
    weight = {"w": torch.ones(1)}
    index = torch.arange(4)
    assert same(renamed({**weight, name: index}, weight), weight)
    assert same(renamed(weight, {**weight, name: index}), {**weight, name: index})
