"""The contrastive term against sums over pairs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives import Contrastive, FinalExit
from tests.objectives.by_hand import random_outputs
from tests.objectives.tiny_model import moved_in, tiny_model

LABEL = torch.tensor([0, 2, -1, 2, 1])


def by_hand(
    outputs: ExitOutputs, label: list[int], temperature: float, only_last: bool, keys_of: ExitOutputs | None = None
) -> float:
    own, others = (
        [[row / row.norm() for row in pooled.detach().double()] for pooled in part.pooled]
        for part in (outputs, keys_of or outputs)
    )
    places = [(e, row) for e in range(len(own)) for row in range(len(label)) if label[row] >= 0]
    losses = []
    for e, row in places:
        keys = [(f, other) for f, other in places if (f, other) != (e, row) and (f == len(own) - 1 or not only_last)]
        scores = {key: float(own[e][row] @ others[key[0]][key[1]]) / temperature for key in keys}
        total = math.log(sum(math.exp(score) for score in scores.values()))
        positive = [total - scores[key] for key in keys if label[key[1]] == label[row]]
        if positive:
            losses.append(sum(positive) / len(positive))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("keys", ["all", "last"])
def test_by_hand(keys: str) -> None:
    outputs = random_outputs()
    objective = Contrastive(FinalExit(), weight=0.3, temperature=0.5, keys=keys)
    result = objective.loss(outputs, LABEL)
    expected = by_hand(outputs, LABEL.tolist(), 0.5, keys == "last")
    assert float(result["contrastive"]) == pytest.approx(expected, rel=1e-5)
    own = float(FinalExit()(outputs.logits, LABEL)["loss"].detach())
    assert float(result["loss"].detach()) == pytest.approx(own + 0.3 * expected, rel=1e-5)


def test_the_last_exits_vectors_guide_without_gradient_and_have_one_as_anchors() -> None:
    outputs, step = random_outputs(), 1e-4
    Contrastive(FinalExit(), weight=1.0, temperature=0.5, keys="last").loss(outputs, LABEL)["loss"].backward()
    for e in (0, 3):
        gradient = outputs.pooled[e].grad
        assert gradient is not None and bool(gradient.any())
        for place in ((0, 0), (1, 3), (3, 5)):
            values = []
            for sign in (1, -1):
                moved = random_outputs()
                moved.pooled = [vectors.detach().double() for vectors in moved.pooled]
                moved.pooled[e][place] += sign * step
                values.append(by_hand(moved, LABEL.tolist(), 0.5, True, keys_of=outputs))
            assert float(gradient[place]) == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-5)


def test_in_evaluation_the_loss_is_that_of_the_objective_alone() -> None:
    outputs = random_outputs()
    with torch.no_grad():
        result = Contrastive(FinalExit()).eval().loss(outputs, LABEL)
        assert torch.equal(result["loss"], FinalExit()(outputs.logits, LABEL)["loss"])
    assert "contrastive" not in result


def test_poolers_of_all_exits_and_their_branches_move() -> None:
    config = {"type": "contrastive", "objective": {"type": "final_exit"}}
    moved = moved_in(tiny_model(config, branch="adapter"), [0])
    assert {"backbone", "exit 1", "exit 2", "exit 3"} == moved


def test_vectors_that_do_not_match_the_labels_are_named() -> None:
    outputs = random_outputs()
    outputs.pooled = []
    with pytest.raises(ConfigurationError, match="'contrastive' needs a pooled vector of each sample at each exit"):
        Contrastive().loss(outputs, LABEL)


@pytest.mark.parametrize("keys", [{"temperature": 0.0}, {"weight": -1.0}, {"keys": "first"}])
def test_options_out_of_range_are_named(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(keys))}: found"):
        Contrastive(**keys)
