from __future__ import annotations

import math

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.objectives import Objective, WeightedDistillation


def by_hand(logits: list[list[list[float]]], labels: list[int], direction: str, teacher: str = "last") -> float:
    """The paper's objective, sample by sample, with nothing but `math`."""

    def softmax(z: list[float]) -> list[float]:
        total = sum(math.exp(v) for v in z)
        return [math.exp(v) / total for v in z]

    def kl(p: list[float], q: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    exits = len(logits[0])
    total = 0.0
    for sample, label in zip(logits, labels, strict=True):
        for i in range(1, exits + 1):
            p = softmax(sample[i - 1])
            loss = -math.log(p[label])
            if i < exits and direction != "off":
                taught_by = softmax(sample[-1 if teacher == "last" else i])
                forward, backward = kl(taught_by, p), kl(p, taught_by)
                loss += {
                    "teacher_student": forward,
                    "student_teacher": backward,
                    "symmetric": (forward + backward) / 2,
                }[direction]
            total += i * loss
    return total / (exits * (exits + 1) / 2) / len(labels)


@pytest.mark.parametrize("teacher", ["last", "next"])
@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher", "symmetric", "off"])
def test_loss_is_the_papers(direction: str, teacher: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 4, 3, dtype=torch.float32)
    labels = [0, 2, 1, 1, 0]
    loss = WeightedDistillation(distillation=direction, teacher=teacher)(logits, torch.tensor(labels))["loss"]
    assert float(loss) == pytest.approx(by_hand(logits.tolist(), labels, direction, teacher), rel=1e-5)


def test_hand_worked_example() -> None:
    # Two exits, two labels, p_1 = (1/2, 1/2), p_2 = (3/4, 1/4), label 0.
    logits = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0]]])
    kl = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    expected = (1 * (math.log(2) + kl) + 2 * -math.log(0.75)) / 3
    assert float(WeightedDistillation()(logits, torch.tensor([0]))["loss"]) == pytest.approx(expected, rel=1e-6)


def test_teacher_is_left_alone_unless_asked() -> None:
    torch.manual_seed(0)
    label = torch.tensor([0, 1])

    def last_exit_gradient(**options: object) -> torch.Tensor:
        logits = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(1)).requires_grad_()
        WeightedDistillation(**options)(logits, label)["loss"].backward()  # type: ignore[arg-type]
        assert logits.grad is not None
        return logits.grad[:, -1]

    alone = last_exit_gradient(distillation="off")
    assert torch.allclose(last_exit_gradient(), alone)
    assert not torch.allclose(last_exit_gradient(detach_teacher=False), alone)


def test_distillation_pulls_exits_towards_the_last_one() -> None:
    logits = torch.zeros(1, 2, 2)
    logits[0, 1, 0] = 2.0
    logits.requires_grad_()
    divergence = WeightedDistillation().divergence(logits).sum()
    divergence.backward()
    assert float(divergence.detach()) > 0
    assert logits.grad is not None and logits.grad[0, 0, 0] < 0 < logits.grad[0, 0, 1]


def test_temperature_softens_and_rescales() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 3, 5)
    soft = WeightedDistillation(temperature=2.0).divergence(logits)
    plain = WeightedDistillation().divergence(logits / 2)
    assert torch.allclose(soft, 4 * plain)


def test_samples_without_label_do_not_count() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 3, 2)
    known = WeightedDistillation()(logits[:2], torch.tensor([0, 1]))["loss"]
    mixed = WeightedDistillation()(logits, torch.tensor([0, 1, -1, -1]))["loss"]
    assert torch.allclose(known, mixed)


def test_layer_weights() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 3, 2)
    label = torch.tensor([0, 1, 1, 0])
    only_last = WeightedDistillation(layer_weights=[0, 0, 5])(logits, label)["loss"]
    assert torch.allclose(only_last, torch.nn.functional.cross_entropy(logits[:, -1], label))
    with pytest.raises(ConfigurationError, match="found 2 numbers, allowed: 3"):
        WeightedDistillation(layer_weights=[1, 2])(logits, label)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"distillation": "teacher"}, "distillation: found 'teacher', allowed: teacher_student"),
        ({"layer_weights": "liner"}, "layer_weights: found 'liner', allowed: linear"),
        ({"temperature": 0.0}, "temperature"),
        ({"layer_weights": [0, 0]}, "not all of them 0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WeightedDistillation(**options)  # type: ignore[arg-type]


def test_registered_under_its_name() -> None:
    assert isinstance(Objective.from_params({"type": "weighted_distillation"}), WeightedDistillation)
