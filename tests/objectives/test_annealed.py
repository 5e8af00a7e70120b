from __future__ import annotations

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.objectives import Annealed
from tests.objectives.by_hand import cross_entropy, random_logits
from tests.objectives.tiny_model import moved_in, tiny_model

LABEL = torch.tensor([0, 2, 1, -1, 0])


def test_weights_rise_in_a_line_to_the_relative_depth() -> None:
    objective = Annealed()
    objective.bind([2, 4, 8], 3)
    for step, expected in ((0, [0.01, 0.01, 1]), (5, [0.13, 0.255, 1]), (10, [0.25, 0.5, 1]), (99, [0.25, 0.5, 1])):
        objective.start_step(step, 11)
        assert objective.exit_weights(3).tolist() == pytest.approx(expected)
    objective.start_step(0, 11)
    assert objective.eval().exit_weights(3).tolist() == pytest.approx([0.25, 0.5, 1])


def test_by_hand() -> None:
    logits = random_logits(exits=3)
    objective = Annealed(start=0.2, end=[0.4, 0.8])
    objective.start_step(1, 3)
    weights = [0.3, 0.5, 1.0]
    known = [0, 1, 2, 4]
    total = sum(w * cross_entropy(logits[s, i].numpy(), int(LABEL[s])) for s in known for i, w in enumerate(weights))
    assert float(objective(logits, LABEL)["loss"]) == pytest.approx(total / 4, rel=1e-5)


def test_one_step_is_the_first() -> None:
    objective = Annealed()
    objective.start_step(0, 1)
    assert objective.exit_weights(2).tolist() == pytest.approx([0.01, 1])


def test_training_without_a_step_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="start_step"):
        Annealed()(random_logits(), LABEL)


def test_early_exits_learn_more_in_later_steps() -> None:
    gradients = []
    for step in (0, 9):
        objective = Annealed()
        objective.start_step(step, 10)
        logits = random_logits().requires_grad_()
        objective(logits, LABEL)["loss"].backward()
        assert logits.grad is not None
        gradients.append(logits.grad.abs().sum((0, 2)))
    ratio = (gradients[1] / gradients[0]).tolist()
    assert ratio == pytest.approx([25, 50, 75, 1], rel=1e-4)


def test_the_right_parameters_move() -> None:
    everything = {"backbone", "exit 1", "exit 2", "exit 3"}
    assert moved_in(tiny_model({"type": "annealed"}), [0, 1, 2]) == everything
    assert moved_in(tiny_model({"type": "annealed", "start": 0.0}), [0]) == {"backbone", "exit 3"}


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigurationError, match="start"):
        Annealed(start=-1)
    with pytest.raises(ConfigurationError, match="end"):
        Annealed(end=[-1.0])
