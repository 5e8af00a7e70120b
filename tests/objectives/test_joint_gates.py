from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives import JointGates
from beem_plugin.objectives.learned_exits import leaving_probabilities
from tests.objectives.by_hand import cross_entropy, random_outputs
from tests.objectives.tiny_model import moved_in, tiny_model

LABEL = [0, 2, 1, -1, 0]
KNOWN = [0, 1, 2, 4]


def at(phase: str, **options: object) -> JointGates:
    """With a warm-up of 10 steps and turns of 5."""
    objective = JointGates(warmup_fraction=0.1, period=5, **options)  # type: ignore[arg-type]
    objective.start_step({"warmup": 9, "gates": 10, "heads": 15}[phase], 100)
    assert objective.phase == phase
    return objective


def losses(outputs: ExitOutputs) -> np.ndarray:
    return np.array(
        [[cross_entropy(outputs.logits[s, i].tolist(), max(LABEL[s], 0)) for i in range(4)] for s in range(5)]
    )


def test_turns() -> None:
    objective = JointGates(warmup_fraction=0.1, period=5)
    phases = []
    for step in range(27):
        objective.start_step(step, 100)
        phases.append(objective.phase)
    assert phases == ["warmup"] * 10 + ["gates"] * 5 + ["heads"] * 5 + ["gates"] * 5 + ["heads"] * 2


def test_warmup_weighs_early_exits_more() -> None:
    outputs = random_outputs()
    expected = losses(outputs)[KNOWN].mean(0) @ np.array([4, 3, 2, 1]) / 10
    loss = at("warmup").loss(outputs, torch.tensor(LABEL))["loss"]
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("cap", [1.0, 1.5, 5.0])
def test_gates_by_hand(beta: float, cap: float) -> None:
    outputs = random_outputs()
    gate = outputs.signals["gate"].detach().double().numpy()
    targets = (losses(outputs) + beta * np.array([0.25, 0.5, 0.75, 1.0])).argmin(1)
    total = 0.0
    for i in range(3):
        leave = np.array([targets[s] <= i for s in KNOWN])
        weight = min(max((~leave).sum() / max(leave.sum(), 1e-9), 1), cap)
        for s, leaves in zip(KNOWN, leave, strict=True):
            total += -weight * math.log(gate[s, i]) if leaves else -math.log(1 - gate[s, i])
    loss = at("gates", beta=beta, max_positive_weight=cap).loss(outputs, torch.tensor(LABEL))["loss"]
    assert loss.item() == pytest.approx(total / 4 / 3, rel=1e-4)


def test_rare_positives_weigh_at_most_the_cap() -> None:
    # Ten samples, of which one should leave at exit 1; the gate says 1/2 to all.
    logits = torch.zeros(10, 2, 2)
    logits[:, 0, 1] = 20.0
    logits[0, 0, 1] = 0.0
    logits[:, 1, 0] = 20.0
    outputs = ExitOutputs(logits, signals={"gate": torch.full((10, 2), 0.5)})
    label = torch.zeros(10, dtype=torch.int64)
    for cap, weight in ((5.0, 5.0), (100.0, 9.0), (1.0, 1.0)):
        loss = at("gates", max_positive_weight=cap, beta=2.0).loss(outputs, label)["loss"]
        assert loss.item() == pytest.approx((weight + 9) * math.log(2) / 10, rel=1e-4)


def test_costs_move_the_target() -> None:
    # Exit 2 is better by less than 0.7 * 0.5.
    logits = torch.tensor([[[0.0, 0.0], [0.5, 0.0]]])
    outputs = ExitOutputs(logits, signals={"gate": torch.tensor([[0.9, 0.5]])})
    label = torch.tensor([0])
    leave, stay = -math.log(0.9), -math.log(0.1)
    assert at("gates").loss(outputs, label)["loss"].item() == pytest.approx(leave, rel=1e-4)
    assert float(at("gates", costs=[0.0, 0.0]).loss(outputs, label)["loss"]) == pytest.approx(stay, rel=1e-4)
    # Bound to a network whose exits are far apart, or close together.
    for layers, expected in (([1, 12], leave), ([11, 12], stay)):
        objective = at("gates")
        objective.bind(layers, 2)
        assert float(objective.loss(outputs, label)["loss"]) == pytest.approx(expected, rel=1e-4)


def test_leaving_probabilities() -> None:
    gate = torch.tensor([[0.3, 0.5, 0.9, 0.0], [0.2, 0.1, 0.3, 0.5], [1.0, 1.0, 0.0, 0.0]])
    expected = torch.tensor([[0.3, 0.5, 0.2, 0.0], [0.2, 0.1, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0]])
    assert torch.allclose(leaving_probabilities(gate), expected)


def test_heads_by_hand() -> None:
    outputs = random_outputs()
    total = 0.0
    for s in KNOWN:
        spent = 0.0
        for i in range(4):
            gate = outputs.signals["gate"][s, i].item() if i < 3 else 1.0
            leaving = max(min(gate, 1 - spent), 0)
            spent += leaving
            total += leaving * losses(outputs)[s, i]
    loss = at("heads").loss(outputs, torch.tensor(LABEL))["loss"]
    assert loss.item() == pytest.approx(total / 4, rel=1e-4)
    both = at("heads").eval().loss(outputs, torch.tensor(LABEL))
    assert both["loss"].item() == pytest.approx(total / 4 + float(both["gates"]), rel=1e-4)


@pytest.mark.parametrize("phase, logits, gates", [("warmup", 1, 0), ("gates", 0, 1), ("heads", 1, 0)])
def test_each_leaves_the_other_alone(phase: str, logits: int, gates: int) -> None:
    outputs = random_outputs()
    at(phase).loss(outputs, torch.tensor(LABEL))["loss"].backward()
    assert (outputs.logits.grad is not None) == bool(logits)
    gradient = outputs.signals["gate"].grad
    assert (gradient is not None) == bool(gates)
    if gradient is not None:
        assert gradient[KNOWN, :3].all() and not gradient[:, 3].any() and not gradient[3].any()


def test_gates_move_towards_their_targets() -> None:
    outputs = random_outputs()
    at("gates").loss(outputs, torch.tensor(LABEL))["loss"].backward()
    targets = (losses(outputs) + 0.7 * np.array([0.25, 0.5, 0.75, 1.0])).argmin(1)
    gradient = outputs.signals["gate"].grad
    assert gradient is not None
    for s in KNOWN:
        for i in range(3):
            assert (float(gradient[s, i]) < 0) == (targets[s] <= i)


def test_the_right_parameters_move() -> None:
    config = {"type": "joint_gates", "warmup_fraction": 0.5, "period": 2}
    heads = {"exit 1", "exit 2", "exit 3"}
    for steps, expected in (([0, 1], heads), ([4, 5], {"gate"}), ([6, 7], heads)):
        model = tiny_model(config, signals=["gate"])
        model.encoder.backbone.requires_grad_(False)
        # Gates that are nearly closed, so that some samples get to every exit.
        for gate in model.encoder.signal_modules["gate"].gates:  # type: ignore[union-attr]
            torch.nn.init.zeros_(gate.weight)
            torch.nn.init.constant_(gate.bias, -2.0)
        assert moved_in(model, steps, total_steps=8) == expected


def test_wrong_options_are_named() -> None:
    for key, value in (("beta", -1), ("warmup_fraction", 2), ("period", 0), ("max_positive_weight", 0.5)):
        with pytest.raises(ConfigurationError, match=f"{key}"):
            JointGates(**{key: value})  # type: ignore[arg-type]
