"""Adafactor, averaged SGD, Adam for sparse gradients, and several optimizers at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.optimization import Adafactor

import beem_plugin.components  # noqa: F401
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, Params
from beem_plugin.training.checkpointer import load_torch, save_torch
from beem_plugin.training.learning_rate_schedulers import LearningRateScheduler
from beem_plugin.training.optimizers import Optimizer
from beem_plugin.training.train import train_model
from tests.training.configs import params, read_metrics
from tests.training.interrupted import interrupted_and_recovered
from tests.training.test_optimization import make_optimizer, tiny_model


class TwoKinds(torch.nn.Module):
    """An embedding with sparse gradients, and a layer with dense ones."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(6, 3, sparse=sparse)
        self.linear = torch.nn.Linear(3, 2)

    def loss(self, ids: list[int]) -> torch.Tensor:
        return self.linear(self.embedding(torch.tensor(ids))).square().sum()


MULTI = {
    "type": "multi",
    "optimizers": {"default": {"type": "adamw", "lr": 0.05}, "top": {"type": "sgd", "lr": 0.2, "momentum": 0.9}},
    "parameter_groups": [[["classifier"], {"optimizer_name": "top"}], [[r"0\.bias"], {"weight_decay": 0.5}]],
}


def steps(optimizer: Optimizer, model: TwoKinds, batches: list[list[int]]) -> None:
    for ids in batches:
        optimizer.zero_grad()
        model.loss(ids).backward()
        optimizer.step()


def apart(one: torch.nn.Module, two: torch.nn.Module) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize(
    "config",
    [
        {"type": "huggingface_adafactor"},
        {"type": "huggingface_adafactor", "lr": 0.05, "relative_step": False, "beta1": 0.9},
        {"type": "averaged_sgd", "lr": 0.1, "t0": 3.0},
        {"type": "dense_sparse_adam", "lr": 0.05},
        MULTI,
    ],
)
def test_training_goes_on_where_it_was(config: dict[str, Any], tmp_path: Path) -> None:
    changes = {"trainer__optimizer": config, "trainer__num_epochs": 4}
    interrupted_and_recovered(tmp_path, **changes)
    assert read_metrics(tmp_path / "whole")["training_loss"] < 0.7


def test_adafactor_is_that_of_transformers() -> None:
    ours, theirs = tiny_model(), tiny_model()
    optimizers = make_optimizer(ours, type="huggingface_adafactor"), Adafactor(theirs.parameters())
    for model, optimizer in zip((ours, theirs), optimizers, strict=True):
        for _ in range(3):
            optimizer.zero_grad()
            model.classifier(torch.ones(1, 6)).square().sum().backward()
            optimizer.step()
    assert apart(ours, theirs) == 0 and apart(ours, tiny_model()) > 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"lr": 0.1}, r"lr: found 0\.1, allowed: null, or a number with relative_step false"),
        ({"relative_step": False}, "lr: found null, allowed: a number"),
        ({"relative_step": False, "lr": 0.1, "warmup_init": True}, "warmup_init: found true"),
        ({"parameter_groups": [[["bias"], {"lr": 0.1}]]}, r"lr: found 0\.1"),
    ],
)
def test_adafactor_with_two_rates_or_none(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_optimizer(tiny_model(), type="huggingface_adafactor", **config)


def test_a_scheduler_needs_a_rate() -> None:
    optimizer = make_optimizer(tiny_model(), type="huggingface_adafactor")
    with pytest.raises(ConfigurationError, match="learning_rate_scheduler: the optimizer chooses its own"):
        Lazy(LearningRateScheduler, params=Params({"type": "constant"})).construct(optimizer=optimizer)


def test_sparse_adam_leaves_rows_without_gradient(tmp_path: Path) -> None:
    """Only row 1 and 2 have gradients; with dense Adam, row 1 would go on moving in the second step."""
    model = TwoKinds()
    before = model.embedding.weight.detach().clone()
    optimizer = make_optimizer(
        model, type="sparse_adam", lr=0.1, parameter_groups=[[["linear"], {"requires_grad": False}]]
    )
    steps(optimizer, model, [[1]])
    first = model.embedding.weight.detach().clone()
    save_torch(optimizer.state_dict(), tmp_path / "state.th")
    optimizer.load_state_dict(load_torch(tmp_path / "state.th"))
    steps(optimizer, model, [[2]])
    changed = (model.embedding.weight != before).any(1)
    assert changed.tolist() == [False, True, True, False, False, False]
    assert torch.equal(model.embedding.weight[1], first[1])


def test_sparse_adam_names_the_parameter_with_a_dense_gradient() -> None:
    model = TwoKinds()
    with pytest.raises(ConfigurationError, match=r"gradient of 'linear\.weight' is dense; .*dense_sparse_adam"):
        steps(make_optimizer(model, type="sparse_adam"), model, [[1]])


def test_dense_sparse_adam_is_adam_and_sparse_adam() -> None:
    batches = [[1, 1, 2], [2], [4, 1], [0]]
    both = TwoKinds()
    steps(make_optimizer(both, type="dense_sparse_adam", lr=0.1), both, batches)
    expected = TwoKinds()
    optimizers = (
        torch.optim.SparseAdam(expected.embedding.parameters(), lr=0.1),
        torch.optim.Adam(expected.linear.parameters(), lr=0.1),
    )
    for ids in batches:
        expected.zero_grad()
        expected.loss(ids).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert apart(both, expected) < 1e-5
    dense, adam = TwoKinds(sparse=False), TwoKinds(sparse=False)
    steps(make_optimizer(dense, type="dense_sparse_adam", lr=0.1), dense, batches)
    steps(make_optimizer(adam, type="adam", lr=0.1), adam, batches)
    assert apart(dense, adam) < 1e-4  # AllenNLP adds eps before the correction of the bias
    with pytest.raises(ValueError, match="beta"):
        make_optimizer(both, type="dense_sparse_adam", betas=[0.9, 1.0])


@pytest.mark.parametrize("key", ["optimizer_name", "name"])
def test_multi_gives_each_parameter_one_optimizer(key: str) -> None:
    model = tiny_model()
    groups = [[["classifier"], {key: "top"}], [["bias"], {"weight_decay": 0.5}]]
    with pytest.raises(ConfigurationError, match="'classifier.bias' matches several groups"):
        make_optimizer(model, **{**MULTI, "parameter_groups": groups})
    groups[1] = [[r"encoder\.0\.bias"], {"weight_decay": 0.5}]
    optimizer = make_optimizer(model, **{**MULTI, "parameter_groups": groups})
    found = [(len(group["params"]), group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    assert found == [(1, 0.05, 0.5), (2, 0.05, 0.01), (2, 0.2, 0)]
    # A scheduler changes the rates of all, also after the state of a checkpoint was loaded.
    optimizer.load_state_dict(optimizer.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model.classifier(torch.ones(1, 6)).square().sum().backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizers": {"top": {"type": "sgd", "lr": 1.0}}}, "optimizers: found top, allowed: one of them named"),
        ({"parameter_groups": [[["classifier"], {"name": "tap"}]]}, "optimizer_name.*'tap'.*top"),
        ({"parameter_groups": [[["nowhere"], {"name": "top"}]]}, "optimizers.top: no trainable parameter is in"),
    ],
)
def test_multi_says_what_is_wrong(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_optimizer(tiny_model(), **{**MULTI, **change})


def test_multi_trains_as_its_only_optimizer_would(tmp_path: Path) -> None:
    plain = {"type": "adam", "lr": 0.05}
    several = {
        "type": "multi",
        "optimizers": {"default": plain, "top": plain},
        "parameter_groups": [[["classifier"], {"name": "top"}]],
    }
    scheduler = {"trainer__learning_rate_scheduler": {"type": "linear_with_warmup", "warmup_steps": 2}}
    train_model(params(trainer__optimizer=plain, **scheduler), tmp_path / "plain")
    train_model(params(trainer__optimizer=several, **scheduler), tmp_path / "multi")
    assert read_metrics(tmp_path / "plain") == pytest.approx(read_metrics(tmp_path / "multi"), abs=1e-6)
