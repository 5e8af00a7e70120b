from __future__ import annotations

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.objectives import Objective, WeightedDistillation
from beem_plugin.objectives.exit_weights import exit_weights, relative_depths
from tests.objectives.by_hand import cross_entropy, random_logits


@pytest.mark.parametrize(
    "layer_weights, expected",
    [
        ("linear", [1, 2, 3, 4]),
        ("descending", [4, 3, 2, 1]),
        ("uniform", [1, 1, 1, 1]),
        ([0, 0.5, 2, 1], [0, 0.5, 2, 1]),
    ],
)
def test_weights_by_name_and_by_number(layer_weights: str | list[float], expected: list[float]) -> None:
    assert exit_weights(layer_weights, 4, reduction="sum").tolist() == expected
    total = sum(expected)
    assert exit_weights(layer_weights, 4).tolist() == pytest.approx([value / total for value in expected])


def test_the_releases_descending_weights_forget_the_last_exit() -> None:
    # 0-based layer k of 4 has weight 3 - k, but the first one's loss is added with weight 1; 3 + 2 + 1 + 0 = 6.
    assert exit_weights("descending_release", 4).tolist() == pytest.approx([1 / 6, 2 / 6, 1 / 6, 0])
    assert exit_weights("descending_release", 4, reduction="sum").tolist() == [1, 2, 1, 0]
    with pytest.raises(ConfigurationError, match="descending_release"):
        exit_weights("descending_release", 1)


def test_a_sum_of_cross_entropies_is_branchynets_and_elasticberts() -> None:
    logits = random_logits()
    label = [0, 2, 1, 1, 0]
    for weights, numbers in (([0.3, 0, 2, 1], [0.3, 0, 2, 1]), ("uniform", [1, 1, 1, 1])):
        config = {"type": "weighted_distillation", "layer_weights": weights, "distillation": "off", "reduction": "sum"}
        objective = Objective.from_params(config)
        expected = sum(
            w * cross_entropy(sample[i], y)
            for sample, y in zip(logits.tolist(), label, strict=True)
            for i, w in enumerate(numbers)
        )
        loss = objective(logits, torch.tensor(label))["loss"]
        assert loss.item() == pytest.approx(expected / 5, rel=1e-5)


def test_a_list_of_the_wrong_length_is_found_before_training() -> None:
    for config in (
        {"type": "weighted_distillation", "layer_weights": [1, 2]},
        {"type": "diverse", "layer_weights": [1, 2]},
        {"type": "imitation", "layer_weights": [1, 2]},
        {"type": "learned_exit", "objective": {"type": "weighted_distillation", "layer_weights": [1, 2]}},
        {"type": "early_exits", "layer_weights": [1, 2], "include_last": True},
        {"type": "annealed", "end": [0.1]},
        {"type": "joint_gates", "costs": [0.1, 1.0]},
    ):
        with pytest.raises(ConfigurationError, match=r"found \d numbers, allowed: \d"):
            Objective.from_params(config).bind([1, 2, 3], 2)
    Objective.from_params({"type": "early_exits", "layer_weights": [1, 2]}).bind([1, 2, 3], 2)


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigurationError, match="reduction: found 'max', allowed: mean, sum"):
        WeightedDistillation(reduction="max")


def test_relative_depths() -> None:
    assert relative_depths([2, 4, 8], 3).tolist() == [0.25, 0.5, 1.0]
    assert relative_depths(None, 4).tolist() == [0.25, 0.5, 0.75, 1.0]
    with pytest.raises(ConfigurationError, match="found logits of 4 exits, allowed: 3"):
        relative_depths([2, 4, 8], 4)
