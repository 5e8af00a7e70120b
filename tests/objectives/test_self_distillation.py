from __future__ import annotations

import math

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.objectives import Objective, SelfDistillation
from tests.objectives.by_hand import cross_entropy, kl, random_logits, softmax
from tests.objectives.tiny_model import moved_in, tiny_model

UNKNOWN = torch.full((5,), -1)


@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher", "symmetric"])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_by_hand_without_labels(direction: str, temperature: float) -> None:
    logits = random_logits()
    total = 0.0
    for sample in logits.numpy():
        teacher = softmax(sample[-1] / temperature)
        for i in range(3):
            student = softmax(sample[i] / temperature)
            forward, backward = kl(teacher, student), kl(student, teacher)
            total += {
                "teacher_student": forward,
                "student_teacher": backward,
                "symmetric": (forward + backward) / 2,
            }[direction]
    expected = temperature**2 * total / 5
    objective = SelfDistillation(direction, temperature)
    assert float(objective(logits, UNKNOWN)["loss"]) == pytest.approx(expected, rel=1e-4)
    mean = SelfDistillation(direction, temperature, reduction="mean")(logits, UNKNOWN)["loss"]
    assert mean.item() == pytest.approx(expected / 3, rel=1e-4)


def test_hand_worked_example() -> None:
    # Student (1/2, 1/2), teacher (3/4, 1/4).
    logits = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0]]])
    release = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    paper = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert float(SelfDistillation()(logits, UNKNOWN[:1])["loss"]) == pytest.approx(release, rel=1e-5)
    assert float(SelfDistillation("student_teacher")(logits, UNKNOWN[:1])["loss"]) == pytest.approx(paper, rel=1e-5)


def test_labels_change_nothing_unless_asked_for() -> None:
    logits = random_logits()
    label = torch.tensor([0, -1, 1, 1, 0])
    assert torch.equal(SelfDistillation()(logits, UNKNOWN)["loss"], SelfDistillation()(logits, label)["loss"])
    mixed = (
        SelfDistillation(cross_entropy_weight=0.5)(logits, label)["loss"] - SelfDistillation()(logits, label)["loss"]
    )
    known = [0, 2, 3, 4]
    hard = sum(cross_entropy(logits[s, i].numpy(), int(label[s])) for s in known for i in range(3)) / 4
    assert float(mixed) == pytest.approx(0.5 * hard, rel=1e-4)


@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher", "symmetric"])
def test_students_move_towards_the_teacher_who_stays(direction: str) -> None:
    logits = torch.tensor([[[0.0, 0.0, 0.0], [-1.0, 0.0, 1.0], [2.0, 0.0, -2.0]]], requires_grad=True)
    SelfDistillation(direction)(logits, UNKNOWN[:1])["loss"].backward()
    assert logits.grad is not None
    assert not logits.grad[0, -1].any()
    for student in (0, 1):
        assert logits.grad[0, student, 0] < 0 < logits.grad[0, student, 2]


def test_only_students_move() -> None:
    model = tiny_model({"type": "self_distillation"})
    model.encoder.backbone.requires_grad_(False)
    assert moved_in(model, [0, 1], label=-1) == {"exit 1", "exit 2"}


def test_wrong_options_are_named() -> None:
    for options, message in (
        ({"direction": "teacher"}, "direction: found 'teacher', allowed: teacher_student"),
        ({"temperature": 0}, "temperature"),
        ({"reduction": "batchmean"}, "reduction"),
        ({"cross_entropy_weight": -1.0}, "cross_entropy_weight"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            SelfDistillation(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="found 1 exit"):
        Objective.from_params({"type": "self_distillation"}).bind([9], 2)
