"""What holds for every objective."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives import Objective
from tests.objectives.by_hand import random_outputs, rows
from tests.objectives.tiny_model import loss_falls, tiny_model

CONFIGS: list[dict[str, Any]] = [
    {"type": "weighted_distillation"},
    {"type": "weighted_distillation", "layer_weights": "descending", "distillation": "off", "reduction": "sum"},
    {"type": "final_exit"},
    {"type": "early_exits"},
    {"type": "early_exits", "reduction": "mean", "layer_weights": "linear", "include_last": True},
    {"type": "alternating"},
    {"type": "learned_exit"},
    {"type": "learned_exit", "objective": {"type": "pondering"}},
    {"type": "self_distillation"},
    {"type": "self_distillation", "direction": "student_teacher", "temperature": 2.0, "cross_entropy_weight": 0.5},
    {"type": "mutual_distillation"},
    {"type": "pondering"},
    {"type": "pondering", "direction": "halting_prior", "epsilon": 0.0, "last_halts": False},
    {"type": "joint_gates"},
    {"type": "diverse"},
    {"type": "diverse", "measure": "kl", "detach_earlier": False},
    {"type": "annealed"},
    {"type": "imitation"},
    {"type": "imitation", "curriculum": "gradual"},
    {"type": "weighted_distillation", "curriculum": {"type": "gradual", "fraction": 0.9}, "teacher": "next"},
    {"type": "early_exits", "curriculum": {"type": "rotational", "period": 3}},
    {"type": "contrastive"},
    {"type": "contrastive", "keys": "last", "objective": {"type": "final_exit"}},
]
LABEL_FREE = {"self_distillation"}


def ids(config: dict[str, Any]) -> str:
    return "-".join(str(value) for value in config.values())


def build(config: dict[str, Any], exits: int = 4, labels: int = 3) -> Objective:
    objective = Objective.from_params(config)
    objective.bind(list(range(1, exits + 1)), labels)
    return objective.eval()


def every_step(objective: Objective) -> Iterator[Objective]:
    """Evaluation, then each kind of training step that there may be."""
    yield objective.eval()
    objective.train()
    for step in (0, 1, 30, 31, 250):
        objective.start_step(step, 100)
        yield objective


def leaves(outputs: ExitOutputs) -> list[torch.Tensor]:
    extras = [value for values in outputs.extras.values() for value in values]
    return [outputs.logits, *outputs.pooled, *outputs.signals.values(), *extras]


@pytest.mark.parametrize("config", CONFIGS, ids=ids)
@pytest.mark.parametrize("labels", [2, 3])
def test_a_scalar_in_float32_and_detached_components(config: dict[str, Any], labels: int) -> None:
    objective = build(config, labels=labels)
    result = objective.loss(random_outputs(labels=labels), torch.tensor([0, 1, labels - 1, 0, 1]))
    assert result["loss"].shape == () and result["loss"].dtype == torch.float32 and result["loss"].requires_grad
    assert "logits" not in result
    for name, value in result.items():
        assert value.shape == () and (name == "loss" or not value.requires_grad), name


@pytest.mark.parametrize("config", CONFIGS, ids=ids)
def test_samples_without_label_do_not_count(config: dict[str, Any]) -> None:
    outputs, label = random_outputs(), torch.tensor([0, -1, 2, -1, 1])
    for objective in every_step(build(config)):
        whole = objective.loss(outputs, label)["loss"]
        known = objective.loss(rows(outputs, [0, 2, 4]), label[[0, 2, 4]])["loss"]
        if config["type"] in LABEL_FREE:
            assert not torch.allclose(whole, known)
        else:
            assert torch.allclose(whole, known, rtol=1e-5)


@pytest.mark.parametrize("config", CONFIGS, ids=ids)
def test_a_batch_without_any_label_is_no_division_by_zero(config: dict[str, Any]) -> None:
    outputs = random_outputs()
    for objective in every_step(build(config)):
        loss = objective.loss(outputs, torch.full((5,), -1))["loss"]
        assert loss.isfinite()
        if config["type"] not in LABEL_FREE:
            assert float(loss.detach()) == 0
        loss.backward()
        assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in leaves(outputs))


@pytest.mark.parametrize("config", CONFIGS, ids=ids)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_outputs_give_a_finite_float32_loss(config: dict[str, Any], dtype: torch.dtype) -> None:
    outputs = random_outputs()
    half = ExitOutputs(
        (outputs.logits * 10).to(dtype),
        [value.to(dtype) for value in outputs.pooled],
        {name: value.to(dtype) for name, value in outputs.signals.items()},
        {name: [value.to(dtype) for value in values] for name, values in outputs.extras.items()},
    )
    for objective in every_step(build(config)):
        loss = objective.loss(half, torch.tensor([0, 1, 2, 0, 1]))["loss"]
        assert loss.dtype == torch.float32 and loss.isfinite()
        loss.backward(retain_graph=True)
        assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in leaves(outputs))


@pytest.mark.parametrize("config", CONFIGS, ids=ids)
def test_saturated_logits_and_signals_give_finite_losses_and_gradients(config: dict[str, Any]) -> None:
    outputs = random_outputs(samples=6)
    sign = torch.sign(outputs.logits.detach())
    outputs.logits = (sign * 30000).requires_grad_()
    sides = (torch.arange(24).reshape(6, 4) // 3 % 2).float()
    outputs.signals = {name: sides.clone().requires_grad_() for name in outputs.signals}
    outputs.extras["imitated"] = [torch.zeros_like(value).requires_grad_() for value in outputs.extras["imitated"]]
    for objective in every_step(build(config)):
        loss = objective.loss(outputs, torch.tensor([0, 1, 2, 0, 1, 2]))["loss"]
        assert loss.isfinite()
        loss.backward()
        assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in leaves(outputs))


@pytest.mark.parametrize("config", CONFIGS, ids=ids)
def test_learns_six_samples(config: dict[str, Any]) -> None:
    signals = list(Objective.from_params(config).required_signals)
    head = "past_future" if config["type"] == "imitation" else "pooled"
    model = tiny_model(config, signals=signals, head=head)
    if config["type"] in LABEL_FREE:
        # A teacher who has something to teach, and stays as it is.
        torch.nn.init.normal_(model.encoder.exits[-1].classifier.weight)  # type: ignore[union-attr, arg-type]
        model.encoder.backbone.requires_grad_(False)
        model.encoder.exits[-1].requires_grad_(False)
    assert loss_falls(model)
