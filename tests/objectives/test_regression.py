"""Objectives where an exit gives one value: losses worked out by hand, gradients, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.data import Vocabulary
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.models import Model, MultiExitRegressor
from beem_plugin.objectives import Objective
from tests.objectives.tiny_model import BERT

# Two samples with labels 1 and 3, three exits; a third sample without label.
VALUES = torch.tensor([[0.0, 1.5, 2.0], [1.0, 3.0, 4.0], [7.0, 8.0, 9.0]]).unsqueeze(-1)
LABELS = torch.tensor([1.0, 3.0, math.nan])
SQUARED = [(1.0 + 4.0) / 2, (0.25 + 0.0) / 2, (1.0 + 1.0) / 2]
"""(y_i - y)^2 of exits 1, 2, 3: means over the samples with a label."""


def objective(config: Any, layers: int = 3) -> Objective:
    built = Objective.from_params(Params(config) if isinstance(config, dict) else config)
    built.bind(list(range(1, layers + 1)), 1)
    return built


def test_joint_training_weighs_squared_errors_by_depth() -> None:
    found = objective({"type": "weighted_distillation", "distillation": "off"})(VALUES, LABELS)
    expected = sum(number * error for number, error in enumerate(SQUARED, 1)) / 6
    assert float(found["loss"]) == pytest.approx(expected)
    assert float(found["squared_error"]) == pytest.approx(expected) and float(found["divergence"]) == 0


def test_distillation_is_the_squared_distance_from_the_last_exit() -> None:
    distances = [(4.0 + 9.0) / 2, (0.25 + 1.0) / 2, 0.0]
    found = objective({"type": "weighted_distillation", "distillation_weight": 0.5})(VALUES, LABELS)
    total = [error + 0.5 * distance for error, distance in zip(SQUARED, distances, strict=True)]
    assert float(found["loss"]) == pytest.approx(sum(number * each for number, each in enumerate(total, 1)) / 6)
    assert float(found["divergence"]) == pytest.approx((distances[0] + 2 * distances[1]) / 6)


@pytest.mark.parametrize("detach_teacher", [True, False])
def test_the_last_exit_is_drawn_along_only_if_asked(detach_teacher: bool) -> None:
    values = VALUES.clone().requires_grad_()
    config = {"type": "weighted_distillation", "layer_weights": [1.0, 0.0, 0.0], "detach_teacher": detach_teacher}
    objective(config)(values, LABELS)["loss"].backward()
    assert values.grad is not None
    assert bool(values.grad[:, 2].any()) == (not detach_teacher)


def test_final_early_and_annealed() -> None:
    assert float(objective({"type": "final_exit"})(VALUES, LABELS)["loss"]) == pytest.approx(SQUARED[2])
    assert float(objective({"type": "early_exits"})(VALUES, LABELS)["loss"]) == pytest.approx(sum(SQUARED[:2]))
    annealed = objective({"type": "annealed"}).eval()(VALUES, LABELS)
    assert float(annealed["loss"]) == pytest.approx(SQUARED[2] + SQUARED[0] / 3 + 2 * SQUARED[1] / 3)


@pytest.mark.parametrize("step, expected", [(0, SQUARED[2]), (1, sum(SQUARED)), (2, SQUARED[2])])
def test_alternating_takes_turns(step: int, expected: float) -> None:
    built = objective({"type": "alternating"}).train()
    built.start_step(step, 10)
    assert float(built(VALUES, LABELS)["loss"]) == pytest.approx(expected)


def test_learned_exit_aims_at_tanh_of_the_distance() -> None:
    values = VALUES.clone().requires_grad_()
    guess = torch.full((3, 3), 0.5, requires_grad=True)
    built = objective({"type": "learned_exit", "objective": {"type": "final_exit"}, "weight": 2.0})
    found = built.loss(ExitOutputs(values, signals={"predicted_error": guess}), LABELS)
    off = [[-1.0, 0.5, 1.0], [-2.0, 0.0, 1.0]]
    error = sum((0.5 - abs(math.tanh(value))) ** 2 for row in off for value in row) / 6
    assert float(found["predicted_error"]) == pytest.approx(error, rel=1e-5)
    assert found["loss"].item() == pytest.approx(SQUARED[2] + 2 * error, rel=1e-5)
    found["loss"].backward()
    assert values.grad is not None and guess.grad is not None
    # The target is detached: values get the gradient of their own loss alone.
    assert values.grad[:2, 2, 0].tolist() == pytest.approx([1.0, 1.0])
    assert not values.grad[:, :2].any()
    assert guess.grad[0, 0] == pytest.approx(2 * 2 * (0.5 - math.tanh(1.0)) / 6)
    assert not guess.grad[2].any()


def test_pondering_weighs_squared_errors_by_halting() -> None:
    halt = torch.tensor([[0.5, 0.5, 0.1], [0.2, 0.4, 0.9], [0.5, 0.5, 0.5]])
    found = objective({"type": "pondering", "beta": 0.0}).loss(ExitOutputs(VALUES, signals={"halt": halt}), LABELS)
    first = 0.5 * 1.0 + 0.25 * 0.25 + 0.25 * 1.0
    second = 0.2 * 4.0 + 0.8 * 0.4 * 0.0 + 0.8 * 0.6 * 1.0
    assert float(found["loss"]) == pytest.approx((first + second) / 2, rel=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        "weighted_distillation",
        "final_exit",
        "early_exits",
        "annealed",
        {"type": "learned_exit", "objective": "final_exit"},
    ],
)
def test_an_unknown_label_gives_no_gradient_and_no_nan(config: Any) -> None:
    values = VALUES.clone().requires_grad_()
    guess = torch.full((3, 3), 0.5, requires_grad=True)
    built = objective(config).eval()
    built.loss(ExitOutputs(values, signals={"predicted_error": guess}), LABELS)["loss"].backward()
    assert values.grad is not None and bool(values.grad.isfinite().all()) and not values.grad[2].any()
    alone = built.loss(ExitOutputs(VALUES[2:], signals={"predicted_error": guess[2:]}), LABELS[2:])
    assert alone["loss"].item() == 0


@pytest.mark.parametrize(
    "config", ["mutual_distillation", "diverse", "self_distillation", {"type": "learned_exit", "objective": "diverse"}]
)
def test_objectives_of_probabilities_are_refused(config: Any) -> None:
    with pytest.raises(
        ConfigurationError, match="found a regression.*allowed: alternating, annealed, (distilled, )?early_exits, fin"
    ):
        objective(config)


def test_a_temperature_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="objective.temperature: found 2.0, allowed: 1"):
        objective({"type": "weighted_distillation", "temperature": 2.0})


def test_berxit_learns_values_and_where_it_errs() -> None:
    torch.manual_seed(0)
    config = {
        "type": "multi_exit_regressor",
        "encoder": {
            "backbone": {"config": BERT},
            "share_pooler": False,
            "signals": ["predicted_error"],
            "dropout": 0.0,
        },
        "objective": {"type": "learned_exit", "objective": "alternating"},
        "exit_policy": {"type": "predicted_error"},
    }
    model = Model.from_params(config, vocab=Vocabulary([]), metric="pearson_spearman", is_regression=True)
    assert isinstance(model, MultiExitRegressor)
    tokens = torch.randint(4, 20, (12, 5), generator=torch.Generator().manual_seed(1))
    label = (tokens[:, 1].float() - 12) / 4
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "label": label}
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for step in range(150):
        model.start_step(step, 150)
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    found = model.eval()(**batch)
    model.update_metrics(found["logits"], label)
    metrics = model.get_metrics(reset=True)
    assert metrics["pearson"] > 0.9 and metrics["exit_1_pearson"] > 0.5
    assert float(found["predicted_error"]) < 0.15
