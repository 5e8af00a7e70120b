from __future__ import annotations

import numpy as np
import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives import Imitation
from tests.objectives.by_hand import cross_entropy, random_outputs
from tests.objectives.tiny_model import moved_in, tiny_model

LABEL = torch.tensor([0, 2, 1, -1, 0])
KNOWN = [0, 1, 2, 4]


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    x, y = a.detach().double().numpy(), b.detach().double().numpy()
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def test_by_hand() -> None:
    outputs = random_outputs()
    hard = sum(i * cross_entropy(outputs.logits[s, i - 1].tolist(), int(LABEL[s])) for s in KNOWN for i in (1, 2, 3, 4))
    soft, pairs = 0.0, 0
    for s in KNOWN:
        for i in (1, 2, 3):
            for k in range(i + 1, 5):
                soft += 1 - cosine(outputs.extras["imitated"][i - 1][s, k - i - 1], outputs.pooled[k - 1][s])
                pairs += 1
    assert pairs == 4 * 6
    result = Imitation().loss(outputs, LABEL)
    assert result["loss"].item() == pytest.approx((hard / 10 / 4 + soft / pairs) / 2, rel=1e-4)
    assert float(result["imitation"]) == pytest.approx(soft / pairs, rel=1e-4)
    half = Imitation(weight=0.5).loss(outputs, LABEL)["loss"]
    assert half.item() == pytest.approx((hard / 10 / 4 + 0.5 * soft / pairs) / 2, rel=1e-4)


def test_perfect_imitations_cost_nothing_and_opposite_ones_two() -> None:
    outputs = random_outputs()
    true = torch.stack(outputs.pooled, 1).detach()
    for factor, expected in ((3.0, 0.0), (-1.0, 2.0)):
        outputs.extras["imitated"] = [factor * true[:, i:] for i in (1, 2, 3)]
        assert float(Imitation().loss(outputs, LABEL)["imitation"]) == pytest.approx(expected, abs=1e-6)


def test_imitations_move_towards_the_states_which_stay() -> None:
    outputs = random_outputs()
    result = Imitation().loss(outputs, LABEL)
    result["loss"].backward()
    assert all(state.grad is None for state in outputs.pooled)
    with torch.no_grad():
        steps = [(value, value.grad) for value in outputs.extras["imitated"]]
        outputs.extras["imitated"] = [value - gradient for value, gradient in steps if gradient is not None]
    assert float(Imitation().loss(outputs, LABEL)["imitation"]) < float(result["imitation"])


def test_the_right_parameters_move() -> None:
    model = tiny_model({"type": "imitation"}, head="past_future")
    everything = {"backbone", "exit 1", "exit 2", "exit 3"}
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    assert moved_in(model, [0, 1]) == everything
    still = {name for name, value in model.named_parameters() if torch.equal(value, before[name])}
    assert not any("imitators" in name for name in still)


def test_a_head_that_does_not_imitate_is_named() -> None:
    outputs = random_outputs()
    with pytest.raises(ConfigurationError, match="found 0 of 4 exits"):
        Imitation().loss(ExitOutputs(outputs.logits, outputs.pooled), LABEL)
    outputs.extras["imitated"].pop()
    with pytest.raises(ConfigurationError, match="found 2 of 4 exits"):
        Imitation().loss(outputs, LABEL)


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigurationError, match="layer_weights"):
        Imitation("up")
    with pytest.raises(ConfigurationError, match="weight"):
        Imitation(weight=-1)
