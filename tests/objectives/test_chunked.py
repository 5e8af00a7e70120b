from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives import Imitation, Objective, WeightedDistillation
from beem_plugin.objectives.chunked import chunked_loss

TOKENS, EXITS, WORDS, SIZE = 23, 4, 37, 8


def world(tied: bool = True) -> tuple[list[Tensor], list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(TOKENS, SIZE, generator=generator).requires_grad_() for _ in range(EXITS)]
    weights = [torch.randn(WORDS, SIZE, generator=generator).requires_grad_() for _ in range(1 if tied else EXITS)]
    return features, weights * EXITS if tied else weights, torch.randint(0, WORDS, (TOKENS,), generator=generator)


def whole(objective: Objective, features: list[Tensor], weights: list[Tensor], target: Tensor) -> Tensor:
    logits = torch.stack([functional.linear(feature, weight) for feature, weight in zip(features, weights)], 1)
    return objective(logits, target)["loss"]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunk_elements", [1, EXITS * WORDS * 5, 10**6])
@pytest.mark.parametrize("detach_teacher", [True, False])
@pytest.mark.parametrize("distillation", ["teacher_student", "symmetric", "off"])
def test_chunks_give_the_loss_and_the_gradients_of_all_logits_at_once(
    tied: bool, chunk_elements: int, detach_teacher: bool, distillation: str
) -> None:
    objective = WeightedDistillation(distillation=distillation, temperature=2.0, detach_teacher=detach_teacher)
    features, weights, target = world(tied)
    expected = whole(objective, features, weights, target)
    tensors = [*features, *dict.fromkeys(weights)]
    expected_grads = torch.autograd.grad(3 * expected, tensors)
    found = chunked_loss(objective, features, weights, target, chunk_elements)
    torch.testing.assert_close(found.loss, expected)
    for grad, expected_grad in zip(torch.autograd.grad(3 * found.loss, tensors), expected_grads):
        torch.testing.assert_close(grad, expected_grad)


@pytest.mark.parametrize("chunk_elements", [EXITS * WORDS * 5, 10**6])
def test_what_an_objective_looks_at_beside_logits_is_taken_in_the_same_chunks(chunk_elements: int) -> None:
    objective = Imitation(weight=0.7)
    features, weights, target = world()
    pooled = [torch.randn(TOKENS, SIZE).requires_grad_() for _ in range(EXITS)]
    imitated = [torch.randn(TOKENS, later, SIZE).requires_grad_() for later in range(EXITS - 1, 0, -1)]
    logits = torch.stack([functional.linear(feature, weights[0]) for feature in features], 1)
    expected = objective.loss(ExitOutputs(logits, pooled, extras={"imitated": imitated}), target)
    found = chunked_loss(objective, features, weights, target, chunk_elements, pooled, {"imitated": imitated})
    torch.testing.assert_close(found.loss, expected["loss"])
    torch.testing.assert_close(found.components["imitation"], expected["imitation"])
    tensors = [*features, weights[0], *imitated]
    for grad, expected_grad in zip(
        torch.autograd.grad(found.loss, tensors), torch.autograd.grad(expected["loss"], tensors), strict=True
    ):
        torch.testing.assert_close(grad, expected_grad)


def test_what_metrics_and_the_log_need_comes_along() -> None:
    objective = WeightedDistillation()
    features, weights, target = world()
    found = chunked_loss(objective, features, weights, target, 1000)
    logits = torch.stack([functional.linear(feature, weights[0]) for feature in features], 1)
    assert torch.equal(found.predictions, logits.argmax(-1))
    expected = torch.stack([functional.cross_entropy(logits[:, e], target, reduction="none") for e in range(EXITS)], 1)
    torch.testing.assert_close(found.negative_log_likelihood, expected)
    for name, value in objective(logits, target).items():
        if name != "loss":
            torch.testing.assert_close(found.components[name], value)


class Learned(Objective):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.3))
        self.idle = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        return {"loss": self.scale * functional.cross_entropy(logits[:, -1], label)}


def test_an_objective_may_have_parameters_and_ignore_exits() -> None:
    objective = Learned()
    features, weights, target = world(tied=False)
    chunked_loss(objective, features, weights, target, 500).loss.backward()
    assert objective.scale.grad is not None
    expected = functional.cross_entropy(functional.linear(features[-1], weights[-1]), target)
    torch.testing.assert_close(objective.scale.grad, expected.detach())
    assert features[0].grad is None or not features[0].grad.any()
    assert objective.idle.grad is None, "an optimizer would decay what the loss does not use"


def test_without_gradient_and_without_tokens() -> None:
    features, weights, target = world()
    with torch.no_grad():
        found = chunked_loss(WeightedDistillation(), features, weights, target)
    assert not found.loss.requires_grad
    nothing = chunked_loss(WeightedDistillation(), [feature[:0] for feature in features], weights, target[:0])
    nothing.loss.backward()
    assert nothing.loss == 0 and nothing.predictions.shape == (0, EXITS)
    assert weights[0].grad is not None and not weights[0].grad.any()


def test_half_precision_keeps_its_gradients_under_autocast() -> None:
    features, weights, target = world()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = chunked_loss(WeightedDistillation(), features, weights, target, 1000).loss
    loss.backward()
    assert loss.dtype == torch.float32 and features[0].grad is not None and features[0].grad.dtype == torch.float32
    exact = whole(WeightedDistillation(), features, weights, target)
    assert float(loss.detach()) == pytest.approx(float(exact.detach()), rel=0.05)


def test_memory_does_not_grow_with_exits_and_tokens() -> None:
    """No tensor with more elements than a chunk has is ever made."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for value in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(value, Tensor):
                    largest = max(largest, value.numel())
            return result

    features, weights, target = world()
    with Watch():
        chunked_loss(WeightedDistillation(), features, weights, target, 3 * EXITS * WORDS).loss.backward()
    assert largest <= 3 * EXITS * WORDS < TOKENS * EXITS * WORDS
