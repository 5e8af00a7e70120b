from __future__ import annotations

import numpy as np
import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives import MutualDistillation
from tests.objectives.by_hand import cross_entropy, kl, random_logits, softmax
from tests.objectives.tiny_model import moved_in, tiny_model

LABEL = torch.tensor([0, 2, 1, -1, 0])
TERMS = [f"exit_{i}" for i in (1, 2, 3)] + [f"exit_{i}_from_{j}" for i in (1, 2, 3) for j in (1, 2, 3) if i != j]
"""Cross-entropies, then, student by student, what is learned from each teacher."""


def bound(exits: int = 3, temperature: float = 1.0) -> MutualDistillation:
    objective = MutualDistillation(temperature)
    objective.bind(list(range(1, exits + 1)), 3)
    return objective


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_terms_by_hand_and_by_name(temperature: float) -> None:
    logits = random_logits(exits=3)
    objective = bound(temperature=temperature)
    known = [0, 1, 2, 4]
    expected = {}
    for i in range(3):
        losses = [cross_entropy(logits[s, i].numpy(), int(LABEL[s])) for s in known]
        expected[f"exit_{i + 1}"] = np.mean(losses)
        for j in range(3):
            if i == j:
                continue
            pairs = [
                (softmax(logits[s, j].numpy() / temperature), softmax(logits[s, i].numpy() / temperature))
                for s in known
            ]
            divergence = np.mean([kl(teacher, student) for teacher, student in pairs])
            expected[f"exit_{i + 1}_from_{j + 1}"] = temperature**2 * divergence
    terms = objective.terms(ExitOutputs(logits), LABEL)
    found = dict(zip(TERMS, terms.tolist(), strict=True))
    assert len(found) == 9 and found == pytest.approx(expected, rel=1e-4)
    # Labels and teachers weigh the same at first: half the mean of each.
    expected_loss = (float(terms[:3].mean()) + float(terms[3:].mean())) / 2
    assert float(objective.loss(ExitOutputs(logits), LABEL)["loss"]) == pytest.approx(expected_loss, rel=1e-5)


def test_learned_weights_weigh_the_terms() -> None:
    logits = random_logits(exits=3)
    objective = bound()
    assert objective.loss_weights is not None
    with torch.no_grad():
        objective.loss_weights.copy_(torch.arange(9.0))
    weights = softmax(np.arange(9.0))
    terms = objective.terms(ExitOutputs(logits), LABEL)
    result = objective.loss(ExitOutputs(logits), LABEL)
    assert result["loss"].item() == pytest.approx(float((terms.numpy() * weights).sum()), rel=1e-5)
    assert result["loss"].item() == pytest.approx(float(result["cross_entropy"] + result["divergence"]), rel=1e-5)


def test_teachers_stay() -> None:
    logits = random_logits(exits=3).requires_grad_()
    objective = bound()
    names = TERMS
    terms = objective.terms(ExitOutputs(logits), LABEL)
    for name, term in zip(names, terms, strict=True):
        (gradient,) = torch.autograd.grad(term, logits, retain_graph=True)
        learns = int(name.split("_")[1]) - 1
        assert gradient.abs().sum((0, 2)).gt(0).tolist() == [i == learns for i in range(3)]


def test_training_leaves_the_weights_to_others() -> None:
    model = tiny_model({"type": "mutual_distillation"})
    assert moved_in(model, [0, 1]) == {"backbone", "exit 1", "exit 2", "exit 3"}
    objective = model.objective
    assert isinstance(objective, MutualDistillation)
    assert objective.loss_weights is not None and not objective.loss_weights.requires_grad
    assert objective.weights().tolist() == pytest.approx([1 / 6] * 3 + [1 / 12] * 6)


def test_weights_are_saved_with_the_model_and_survive_a_second_binding() -> None:
    model = tiny_model({"type": "mutual_distillation"})
    assert model.state_dict()["objective.loss_weights"].shape == (9,)
    objective = bound()
    kept = objective.loss_weights
    objective.bind([1, 2, 3], 3)
    assert objective.loss_weights is kept
    objective.bind([1, 2], 3)
    assert objective.weights().tolist() == pytest.approx([0.25] * 4)
    equal = MutualDistillation(cross_entropy_share=1 / 3)
    equal.bind([1, 2, 3], 3)
    assert equal.weights().tolist() == pytest.approx([1 / 9] * 9)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(RuntimeError, match="bind"):
        MutualDistillation().loss(ExitOutputs(random_logits()), LABEL)
    with pytest.raises(ConfigurationError, match="found logits of 4 exits, allowed: 3"):
        bound().loss(ExitOutputs(random_logits(exits=4)), LABEL)
    with pytest.raises(ConfigurationError, match="found 1 exit"):
        MutualDistillation().bind([9], 2)
    with pytest.raises(ConfigurationError, match="temperature"):
        MutualDistillation(0)
    with pytest.raises(ConfigurationError, match="cross_entropy_share"):
        MutualDistillation(cross_entropy_share=1.0)
