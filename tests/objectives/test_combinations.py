"""Every objective with every branch and every fork; and steps that a CUDA graph can capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import beem_plugin.components  # noqa: F401
from beem_plugin.backbones import masks
from beem_plugin.exits.branches import Branch
from beem_plugin.exits.forks import Fork
from beem_plugin.objectives import Objective
from tests.objectives.test_all_objectives import CONFIGS, ids
from tests.objectives.tiny_model import tiny_batch, tiny_model

OBJECTIVES = [*CONFIGS, {"type": "distilled", "teacher": "loaded below", "hidden_states_weight": 0.5}]
#: Each gives a step that differs from one to the next by more than numbers.
ALTERNATE = {"alternating", "learned_exit", "joint_gates"}


def own(base: Any) -> list[str]:
    """The registered names of the package's own classes; other tests register more."""
    return [name for name in base.list_available() if base.by_name(name).__module__.startswith("beem_plugin.")]


NAMES, BRANCHES, FORKS = sorted(own(Objective)), own(Branch), own(Fork)


def model_of(objective: dict[str, Any], **encoder: Any) -> Any:
    signals = list(Objective.from_params(objective).required_signals)
    head = "past_future" if objective["type"] == "imitation" else "pooled"
    model = tiny_model(objective, signals=signals, head=head, **encoder)
    if objective["type"] == "distilled":
        model.objective._loaded = [tiny_model("final_exit").requires_grad_(False).eval()]  # type: ignore[operator]
    return model.train()


@pytest.mark.parametrize("name", NAMES)
def test_one_step_with_every_branch_and_fork(name: str) -> None:
    objective, batch = next(config for config in OBJECTIVES if config["type"] == name), tiny_batch()
    for branch in (None, *BRANCHES):
        width = {} if branch is None else {"branch": {"type": branch, "width": 4}}
        model = model_of(objective, layer_dropout={"max_rate": 0.3}, **width)
        for fork in FORKS:
            model.encoder.fork = Fork.from_params(fork)
            model.encoder.fork.bind(3)
            model.zero_grad()
            model.start_step(5, 10)
            model(**batch)["loss"].backward()
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            assert any(bool(gradient.any()) for gradient in gradients), (branch, fork)
            assert all(bool(gradient.isfinite().all()) for gradient in gradients), (branch, fork)
            torch.optim.SGD(model.parameters(), lr=0.01).step()
        with torch.no_grad():
            assert bool(model.eval()(**batch)["loss"].isfinite()), branch


def test_all_that_are_registered_are_covered() -> None:
    assert {config["type"] for config in OBJECTIVES} == set(NAMES)
    assert {"adapter", "mlp", "transformer"} <= set(BRANCHES)
    assert {"detached", "equilibrium", "gradnorm", "projected", "scaled", "sum"} <= set(FORKS)


class WithoutHost(TorchDispatchMode):
    """Refuses what a capture refuses: reading a value, sizes that depend on values, constants from the host."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().split("::")[1].split(".")[0]
        assert name not in ("_local_scalar_dense", "item", "nonzero", "masked_select", "lift_fresh"), name
        indices = args[1] if name in ("index", "index_put", "index_put_") else []
        assert all(index is None or index.dtype != torch.bool for index in indices), name
        return function(*args, **(kwargs or {}))


# An objective is computed from what the exits give, whatever fork its gradient then passes.
@pytest.mark.parametrize(
    ("objective", "fork"),
    [*((one, "sum") for one in OBJECTIVES), *((OBJECTIVES[0], fork) for fork in FORKS if fork != "sum")],
    ids=lambda value: value if isinstance(value, str) else ids(value),
)
def test_a_training_step_can_be_captured(objective: dict[str, Any], fork: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "may_have_padding", lambda mask: True)  # as on a GPU
    if objective["type"] == "distilled":
        objective = {**objective, "hidden_states_weight": 0.0}  # which selects the real tokens
    keys = {"fork": fork, "branch": "transformer", "layer_dropout": {"schedule": "exponential"}}
    model, batch = model_of(objective, **keys), tiny_batch()
    model.start_step(3, 10)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with WithoutHost():
        outputs = model.encoder.outputs(inputs)
        model.objective.loss(outputs, batch["label"])["loss"].backward()


@pytest.mark.parametrize("objective", [one for one in OBJECTIVES if one["type"] not in ALTERNATE], ids=ids)
def test_the_step_reaches_a_captured_loss_by_tensors_alone(objective: dict[str, Any]) -> None:
    """As in a replayed graph, whose Python code does not run again: only tensors change."""
    model, batch = model_of(objective), tiny_batch()
    with torch.no_grad():
        outputs = model.encoder.outputs({name: batch[name] for name in ("input_ids", "attention_mask")})

    def loss() -> float:
        return float(model.objective.loss(outputs, batch["label"])["loss"])

    model.start_step(9, 10)
    expected = loss()
    model.start_step(0, 10)
    for module in model.objective.modules():
        if isinstance(module, Objective):
            module.schedule.copy_(torch.tensor([9.0, 10.0]))
    assert loss() == pytest.approx(expected, rel=1e-6)
