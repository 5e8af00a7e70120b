from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives import Pondering
from beem_plugin.objectives.learned_exits import truncated_geometric
from tests.objectives.by_hand import cross_entropy, random_outputs
from tests.objectives.tiny_model import moved_in, tiny_model

LABEL = torch.tensor([0, 2, 1, -1, 0])


def halting_by_hand(halt: list[float], epsilon: float, last_halts: bool) -> list[float]:
    left, result = 1.0, []
    for i, rate in enumerate(halt):
        if left < epsilon:
            result.append(epsilon / len(halt))
        elif last_halts and i == len(halt) - 1:
            result.append(left)
        else:
            result.append(left * rate)
        left *= 1 - rate
    return result


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("last_halts", [True, False])
@pytest.mark.parametrize("direction", ["prior_halting", "halting_prior"])
def test_by_hand(epsilon: float, last_halts: bool, direction: str) -> None:
    outputs = random_outputs()
    prior = np.array([0.2 * 0.8**i for i in range(4)])
    prior /= prior.sum()
    total = 0.0
    for s in (0, 1, 2, 4):
        p = halting_by_hand(outputs.signals["halt"][s].tolist(), epsilon, last_halts)
        total += sum(p[i] * cross_entropy(outputs.logits[s, i].tolist(), int(LABEL[s])) for i in range(4))
        a, b = (prior, p) if direction == "prior_halting" else (p, prior)
        total += 0.3 * sum(a[i] * math.log(a[i] / b[i]) for i in range(4))
    objective = Pondering(0.3, 0.2, epsilon, direction, last_halts)
    assert objective.loss(outputs, LABEL)["loss"].item() == pytest.approx(total / 4, rel=1e-4)


def test_hand_worked_example() -> None:
    # lambda = (1/2, 1/2, -): p = (1/2, 1/4, 1/4). CE = ln 2, ln 4, ln 4.
    halt = torch.tensor([[0.5, 0.5, 0.1]])
    logits = torch.tensor([[[0.0, 0.0], [0.0, math.log(3.0)], [0.0, math.log(3.0)]]])
    objective = Pondering(beta=0.0)
    assert torch.allclose(objective.log_halting(halt).exp(), torch.tensor([[0.5, 0.25, 0.25]]))
    expected = 0.5 * math.log(2) + 0.5 * math.log(4)
    loss = objective.loss(ExitOutputs(logits, signals={"halt": halt}), torch.tensor([0]))["loss"]
    assert loss.item() == pytest.approx(expected)


def test_the_prior_is_geometric_and_sums_to_one() -> None:
    prior = truncated_geometric(0.25, 3).exp()
    assert prior.tolist() == pytest.approx([16 / 37, 12 / 37, 9 / 37])


def test_halting_probabilities_sum_to_one_and_freeze() -> None:
    halt = torch.rand(20, 6, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(Pondering(epsilon=0.0).log_halting(halt).exp().sum(1), torch.ones(20))
    # Nearly all have halted after exit 2: exits 3 and 4 are constants, exit 2 is not.
    p = Pondering(epsilon=0.05).log_halting(torch.tensor([[0.5, 0.95, 0.3, 0.3]], requires_grad=True)).exp()
    assert p[0].tolist() == pytest.approx([0.5, 0.475, 0.05 / 4, 0.05 / 4])


def test_both_heads_and_halting_learn_the_right_way() -> None:
    # Exit 1 is right, exit 2 wrong: halting earlier makes the expected loss smaller; and the other way round.
    right, wrong = [3.0, 0.0], [0.0, 3.0]
    for logits, sign in (([right, wrong], -1), ([wrong, right], 1)):
        halt = torch.tensor([[0.5, 0.5]], requires_grad=True)
        values = torch.tensor([logits], requires_grad=True)
        Pondering(beta=0.0).loss(ExitOutputs(values, signals={"halt": halt}), torch.tensor([0]))["loss"].backward()
        assert halt.grad is not None and halt.grad[0, 0] * sign > 0
        assert values.grad is not None and (values.grad[0, :, 0] < 0).all()
    # Towards the prior, which halts late: a halting probability above lambda_p is pushed down.
    halt = torch.tensor([[0.9, 0.5]], requires_grad=True)
    outputs = ExitOutputs(torch.zeros(1, 2, 2), signals={"halt": halt})
    Pondering(beta=1.0).loss(outputs, torch.tensor([0]))["loss"].backward()
    assert halt.grad is not None and halt.grad[0, 0] > 0


def test_the_right_parameters_move() -> None:
    model = tiny_model({"type": "pondering"}, signals=["halt"], share_pooler=True, share_classifier=True)
    # Pooler and classifier are one for all exits and have the first exit's name.
    assert moved_in(model, [0, 1]) == {"backbone", "exit 1", "halt"}
    with pytest.raises(ConfigurationError, match="halt"):
        tiny_model({"type": "pondering"})


def test_wrong_options_are_named() -> None:
    for key, value in (("beta", -1), ("lambda_p", 0), ("lambda_p", 1), ("epsilon", 1), ("direction", "prior")):
        with pytest.raises(ConfigurationError, match=f"{key}"):
            Pondering(**{key: value})  # type: ignore[arg-type]
