from __future__ import annotations

import math

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.objectives import EarlyExits, FinalExit, Objective
from tests.objectives.by_hand import cross_entropy, random_logits
from tests.objectives.tiny_model import moved_in, tiny_model

LABEL = [0, 2, 1, 1, 0]


def test_hand_worked_example() -> None:
    # Probabilities of label 0: 1/2 at exit 1, 3/4 at exit 2, 9/10 at exit 3.
    logits = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0], [math.log(9.0), 0.0]]])
    label = torch.tensor([0])
    assert float(FinalExit()(logits, label)["loss"]) == pytest.approx(-math.log(0.9))
    assert float(EarlyExits()(logits, label)["loss"]) == pytest.approx(-math.log(0.5 * 0.75))
    assert float(EarlyExits(reduction="mean")(logits, label)["loss"]) == pytest.approx(-math.log(0.5 * 0.75) / 2)
    assert float(EarlyExits(include_last=True)(logits, label)["loss"]) == pytest.approx(-math.log(0.5 * 0.75 * 0.9))


@pytest.mark.parametrize(
    "weights, numbers",
    [("linear", [1, 2, 3]), ("descending", [3, 2, 1]), ("uniform", [1, 1, 1]), ([2, 0, 1], [2, 0, 1])],
)
def test_weights_count_the_exits_before_the_last(weights: str | list[float], numbers: list[float]) -> None:
    logits = random_logits()
    each = [
        sum(cross_entropy(sample[i], y) for sample, y in zip(logits.tolist(), LABEL, strict=True)) / 5 for i in range(3)
    ]
    total = sum(w * value for w, value in zip(numbers, each, strict=True))
    label = torch.tensor(LABEL)
    assert float(EarlyExits(layer_weights=weights)(logits, label)["loss"]) == pytest.approx(total, rel=1e-5)
    mean = EarlyExits("mean", weights)(logits, label)["loss"]
    assert mean.item() == pytest.approx(total / sum(numbers), rel=1e-5)


def test_who_gets_the_gradient() -> None:
    for objective, learns in ((FinalExit(), [False, False, True]), (EarlyExits(), [True, True, False])):
        logits = random_logits(exits=3).requires_grad_()
        objective(logits, torch.tensor(LABEL))["loss"].backward()
        assert logits.grad is not None
        assert logits.grad.abs().sum((0, 2)).gt(0).tolist() == learns
        # Towards the label: more of its logit makes the loss smaller.
        own = logits.grad[torch.arange(5), :, torch.tensor(LABEL)]
        assert (own[:, torch.tensor(learns)] < 0).all()


def test_a_network_without_early_exits_has_nothing_to_learn() -> None:
    with pytest.raises(ConfigurationError, match="objective.include_last"):
        EarlyExits().bind([9], 2)
    EarlyExits(include_last=True).bind([9], 2)
    logits = random_logits(exits=1)
    assert torch.isfinite(FinalExit()(logits, torch.tensor(LABEL))["loss"])


def test_the_right_exits_move() -> None:
    assert moved_in(tiny_model({"type": "final_exit"}), [0, 1]) == {"backbone", "exit 3"}
    assert moved_in(tiny_model({"type": "early_exits"}), [0, 1]) == {"backbone", "exit 1", "exit 2"}
    model = tiny_model({"type": "early_exits", "reduction": "mean"})
    model.encoder.backbone.requires_grad_(False)
    assert moved_in(model, [0, 1]) == {"exit 1", "exit 2"}


def test_registered_under_their_names() -> None:
    assert isinstance(Objective.from_params({"type": "final_exit"}), FinalExit)
    assert isinstance(Objective.from_params({"type": "early_exits"}), EarlyExits)
