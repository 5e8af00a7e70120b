"""Which exits are trained in a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.objectives import EarlyExits, Objective, WeightedDistillation
from beem_plugin.objectives.exit_weights import GradualCurriculum, RotationalCurriculum
from tests.objectives.by_hand import kl, random_logits, softmax
from tests.objectives.tiny_model import moved_in, tiny_model


def enabled(objective: Any, num_exits: int = 4, total: int = 11) -> list[list[float]]:
    """Weights of the exits in every step."""
    found = []
    for step in range(total):
        objective.start_step(step, total)
        found.append(objective.exit_weights(num_exits).tolist())
    return found


def test_exits_join_from_deep_to_shallow() -> None:
    found = enabled(WeightedDistillation("uniform", "off", reduction="sum", curriculum=GradualCurriculum(0.6)))
    # Exit 3 after a fifth of the steps, exit 2 after two fifths, exit 1 after three.
    assert found == [[0, 0, 0, 1]] * 2 + [[0, 0, 1, 1]] * 2 + [[0, 1, 1, 1]] * 2 + [[1, 1, 1, 1]] * 5


def test_exits_take_turns_and_the_last_is_always_trained() -> None:
    found = enabled(WeightedDistillation("uniform", "off", reduction="sum", curriculum=RotationalCurriculum(3)))
    assert found[:4] == [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [1, 0, 0, 1]]


def test_weights_are_normalised_over_the_enabled_exits() -> None:
    found = enabled(WeightedDistillation("linear", "off", curriculum=GradualCurriculum(0.5)))
    assert found[0] == pytest.approx([0, 0, 0, 1]) and found[2] == pytest.approx([0, 0, 3 / 7, 4 / 7])
    objective = WeightedDistillation("linear", "off", curriculum=GradualCurriculum(0.5))
    assert objective.eval().exit_weights(4).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_without_the_last_exit_there_may_be_nothing_to_train() -> None:
    objective = EarlyExits(curriculum=GradualCurriculum())
    objective.start_step(0, 10)
    assert float(objective(random_logits(), torch.tensor([0, 1, 2, 0, 1]))["loss"]) == 0


def test_training_without_a_step_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="start_step"):
        WeightedDistillation(curriculum=GradualCurriculum()).exit_weights(3)


def test_the_schedule_is_updated_in_place() -> None:
    """So that a captured graph reads the current step."""
    objective = WeightedDistillation(curriculum=GradualCurriculum())
    schedule = objective.schedule
    objective.start_step(3, 7)
    assert objective.schedule is schedule and schedule.tolist() == [3, 7]
    assert "schedule" not in objective.state_dict()


def test_disabled_exits_do_not_move() -> None:
    config = {"type": "weighted_distillation", "distillation": "off", "curriculum": {"type": "gradual"}}
    assert moved_in(tiny_model(config), [0], total_steps=10) == {"backbone", "exit 3"}
    assert moved_in(tiny_model(config), [3], total_steps=10) == {"backbone", "exit 2", "exit 3"}


def test_each_exit_is_taught_by_the_next() -> None:
    logits, label = random_logits(), torch.tensor([0, 2, 1, 1, 0])
    objective = Objective.from_params(
        {"type": "weighted_distillation", "layer_weights": [1, 2, 3, 4], "teacher": "next", "reduction": "sum"}
    )
    expected = sum(
        (i + 1) * kl(softmax(sample[i + 1]), softmax(sample[i])) for sample in logits.tolist() for i in range(3)
    )
    assert float(objective(logits, label)["divergence"]) == pytest.approx(expected / 5, rel=1e-5)


@pytest.mark.parametrize(
    ("curriculum", "words"),
    [
        ({"type": "gradual", "fraction": 1.5}, "curriculum.fraction: found 1.5, allowed: 0 to 1"),
        ({"type": "rotational", "period": 0}, "curriculum.period: found 0, allowed: 1 or more"),
    ],
)
def test_options_out_of_range_are_named(curriculum: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Objective.from_params({"type": "weighted_distillation", "curriculum": curriculum})
