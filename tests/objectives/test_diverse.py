from __future__ import annotations

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.objectives import Diverse
from tests.objectives.by_hand import cross_entropy, kl, random_logits, softmax
from tests.objectives.tiny_model import moved_in, tiny_model

LABEL = torch.tensor([0, 2, 1, -1, 0])


@pytest.mark.parametrize("measure", ["cross_entropy", "kl"])
@pytest.mark.parametrize("weights, numbers", [("uniform", [1, 1, 1, 1]), ("linear", [1, 2, 3, 4])])
def test_by_hand(measure: str, weights: str, numbers: list[float]) -> None:
    logits = random_logits()
    total = 0.0
    for s in (0, 1, 2, 4):
        p = [softmax(logits[s, i].numpy()) for i in range(4)]
        for i, w in enumerate(numbers):
            total += w * cross_entropy(logits[s, i].numpy(), int(LABEL[s]))
            entropy = [kl(p[j], p[j] / p[j]) if measure == "cross_entropy" else 0.0 for j in range(i)]
            distances = [kl(p[j], p[i]) - entropy[j] for j in range(i)]
            total -= w * 0.3 * min(distances, default=0.0)
    loss = Diverse(0.3, measure, weights)(logits, LABEL)["loss"]
    assert loss.item() == pytest.approx(total / 4, rel=1e-4)
    mean = Diverse(0.3, measure, weights, "mean")(logits, LABEL)["loss"]
    assert mean.item() == pytest.approx(total / 4 / sum(numbers), rel=1e-4)


@pytest.mark.parametrize("measure", ["cross_entropy", "kl"])
def test_minimising_it_increases_disagreement(measure: str) -> None:
    objective = Diverse(0.5, measure)
    start = torch.tensor([[[1.0, 0.0, 0.0], [0.8, 0.1, 0.1], [0.9, 0.0, 0.1]]])
    logits = start.clone().requires_grad_()
    # Nothing but the term of diversity, as it enters the loss.
    (gradient,) = torch.autograd.grad(-objective.weight * objective.diversity(logits).sum(), logits)
    assert not gradient[0, 0].any()
    with torch.no_grad():
        moved = start - 0.5 * gradient
    assert (objective.diversity(moved)[0, 1:] > objective.diversity(start)[0, 1:]).all()
    assert (moved.softmax(-1)[0, 1:, 0] < start.softmax(-1)[0, 1:, 0]).all()


def test_the_loss_falls_as_exits_differ_at_equal_accuracy() -> None:
    # Both say the label with probability 1/2; the rest goes to the same or to different other labels.
    same = torch.tensor([[[0.50, 0.45, 0.05], [0.50, 0.45, 0.05]]]).log()
    different = torch.tensor([[[0.50, 0.45, 0.05], [0.50, 0.05, 0.45]]]).log()
    label = torch.tensor([0])
    objective = Diverse(0.5)
    assert float(objective(different, label)["loss"]) < float(objective(same, label)["loss"])
    assert float(objective(different, label)["cross_entropy"]) == float(objective(same, label)["cross_entropy"])


def test_where_an_earlier_exit_is_right_the_label_still_wins() -> None:
    logits = torch.tensor([[[4.0, 0.0], [1.0, 0.0]]], requires_grad=True)
    Diverse(0.9)(logits, torch.tensor([0]))["loss"].backward()
    assert logits.grad is not None and logits.grad[0, 1, 0] < 0


def test_the_nearest_earlier_exit_counts_and_stays() -> None:
    logits = torch.tensor([[[5.0, 0.0], [0.0, 0.5], [0.0, 1.0]]], requires_grad=True)
    objective = Diverse()
    objective.diversity(logits)[0, 2].backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum(-1)[0].gt(0).tolist() == [False, False, True]
    logits.grad = None
    Diverse(detach_earlier=False).diversity(logits)[0, 2].backward()
    assert logits.grad.abs().sum(-1)[0].gt(0).tolist() == [False, True, True]  # type: ignore[attr-defined]


def test_one_exit_is_plain_cross_entropy() -> None:
    logits = random_logits(exits=1)
    expected = sum(cross_entropy(logits[s, 0].numpy(), int(LABEL[s])) for s in (0, 1, 2, 4)) / 4
    assert float(Diverse()(logits, LABEL)["loss"]) == pytest.approx(expected, rel=1e-5)


def test_all_exits_and_the_backbone_move() -> None:
    assert moved_in(tiny_model({"type": "diverse"}), [0, 1]) == {"backbone", "exit 1", "exit 2", "exit 3"}


def test_wrong_options_are_named() -> None:
    for key, value in (("weight", 1.0), ("measure", "mse"), ("layer_weights", "up"), ("reduction", "all")):
        with pytest.raises(ConfigurationError, match=f"{key}"):
            Diverse(**{key: value})  # type: ignore[arg-type]
