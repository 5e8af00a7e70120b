from __future__ import annotations

from typing import Any

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives import Alternating, EarlyExits, FinalExit, LearnedExit, Objective
from tests.objectives.by_hand import random_logits, random_outputs
from tests.objectives.tiny_model import moved_in, tiny_model

LABEL = torch.tensor([0, 2, 1, 1, 0])


def test_even_steps_are_the_last_exits_and_odd_ones_all_exits() -> None:
    logits = random_logits()
    last = FinalExit()(logits, LABEL)["loss"]
    early = EarlyExits()(logits, LABEL)["loss"]
    for include, odd in ((True, early + last), (False, early)):
        objective = Alternating(include)
        for step in range(6):
            objective.start_step(step, 6)
            assert torch.allclose(objective(logits, LABEL)["loss"], odd if step % 2 else last)
        # In evaluation one loss, whichever step was the last.
        assert torch.allclose(objective.eval()(logits, LABEL)["loss"], odd)


def test_training_without_a_step_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="start_step"):
        Alternating()(random_logits(), LABEL)
    assert torch.isfinite(Alternating().eval()(random_logits(), LABEL)["loss"])


def test_learned_exit_by_hand() -> None:
    # Predictions: exit 1 says 0, exit 2 says 1. Sample 1 is a 0, sample 2 a 1, sample 3 unknown.
    logits = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]).repeat(3, 1, 1)
    guess = torch.tensor([[0.2, 0.6], [0.7, 0.9], [0.5, 0.5]])
    outputs = ExitOutputs(logits, signals={"predicted_error": guess})
    label = torch.tensor([0, 1, -1])
    # Wrong: (0, 1) for sample 1, (1, 0) for sample 2.
    squares = [(0.2 - 0) ** 2, (0.6 - 1) ** 2, (0.7 - 1) ** 2, (0.9 - 0) ** 2]
    inner = float(FinalExit()(logits, label)["loss"])
    for reduction, error in (("mean", sum(squares) / 4), ("sum", sum(squares) / 2)):
        result = LearnedExit(FinalExit(), weight=0.5, reduction=reduction).loss(outputs, label)
        assert float(result["predicted_error"]) == pytest.approx(error)
        assert result["loss"].item() == pytest.approx(inner + 0.5 * error)


def test_the_guess_learns_and_the_logits_do_not_learn_from_it() -> None:
    outputs = random_outputs()
    LearnedExit(FinalExit()).loss(outputs, LABEL)["loss"].backward()
    with_guess = outputs.logits.grad
    alone = random_logits().requires_grad_()
    FinalExit()(alone, LABEL)["loss"].backward()
    assert with_guess is not None and alone.grad is not None and torch.allclose(with_guess, alone.grad)
    gradient = outputs.signals["predicted_error"].grad
    assert gradient is not None
    wrong = outputs.logits.argmax(-1) != LABEL.unsqueeze(1)
    # Down the gradient: up where the exit is wrong, down where it is right.
    assert (gradient[wrong] < 0).all() and (gradient[~wrong] > 0).all()


def test_the_inner_objective_is_told_the_step_and_the_shape() -> None:
    objective = LearnedExit()
    assert isinstance(objective.objective, Alternating)
    objective.start_step(3, 10)
    objective.bind([2, 4], 2)
    assert objective.objective.progress == (3, 10)
    assert objective.objective.exit_layers == (2, 4)


def test_signals_of_the_inner_objective_are_required_too() -> None:
    objective = Objective.from_params({"type": "learned_exit", "objective": {"type": "pondering"}})
    assert objective.required_signals == ("halt", "predicted_error")
    with pytest.raises(ConfigurationError, match="predicted_error"):
        tiny_model({"type": "learned_exit"})


@pytest.mark.parametrize(
    "config, even, odd",
    [
        ({}, {"exit 3"}, {"exit 1", "exit 2", "exit 3"}),
        ({"objective": {"type": "alternating", "include_final_on_odd": False}}, {"exit 3"}, {"exit 1", "exit 2"}),
    ],
)
def test_the_right_parameters_move(config: dict[str, Any], even: set[str], odd: set[str]) -> None:
    objective = {"type": "alternating", **config.get("objective", {})}
    assert moved_in(tiny_model(objective), [0, 2]) == {"backbone", *even}
    assert moved_in(tiny_model(objective), [1, 3]) == {"backbone", *odd}
    # The guess reads every exit's pooled vector, so its error moves the exits' poolers too...
    model = tiny_model({"type": "learned_exit", **config}, signals=["predicted_error"])
    assert moved_in(model, [0, 1, 2]) == {"backbone", "exit 1", "exit 2", "exit 3", "predicted_error"}
    # ... unless it looks without touching.
    detached = tiny_model({"type": "learned_exit", **config}, signals=[{"type": "predicted_error", "detach": True}])
    assert moved_in(detached, [0, 2]) == {"backbone", "predicted_error", *even}


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigurationError, match="weight"):
        LearnedExit(weight=-1)
    with pytest.raises(ConfigurationError, match="reduction"):
        LearnedExit(reduction="all")
