"""Moving averages of the weights, and schedules of the momentum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from beem_plugin.common.registry import Lazy, Params
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.schedules import MomentumScheduler
from beem_plugin.training.train import train_model
from tests.training.configs import params, read_metrics
from tests.training.interrupted import interrupted_and_recovered
from tests.training.test_optimization import make_optimizer, tiny_model


@TrainerCallback.register("weights_of_steps")
class WeightsOfSteps(TrainerCallback):
    """Keeps the classifier's weights after every step, and in the order of calls those at the end of every epoch."""

    steps: list[torch.Tensor]
    epochs: list[torch.Tensor]

    def on_start(self, trainer: Any, **kwargs: Any) -> None:
        start = trainer.model.classifier.weight.detach().clone()
        WeightsOfSteps.steps, WeightsOfSteps.epochs = [start], []

    def on_batch(self, trainer: Any, **kwargs: Any) -> None:
        self.steps.append(trainer.model.classifier.weight.detach().clone())

    def on_epoch(self, trainer: Any, **kwargs: Any) -> None:
        self.epochs.append(trainer.model.classifier.weight.detach().clone())


def test_the_average_is_validated_and_kept(tmp_path: Path) -> None:
    changes = {"trainer__callbacks": ["weights_of_steps"], "trainer__num_epochs": 2}
    train_model(params(**changes, trainer__moving_average={"decay": 0.6}), tmp_path / "run")
    average, averages = WeightsOfSteps.steps[0], []
    for step, weights in enumerate(WeightsOfSteps.steps[1:], 1):
        decay = min(0.6, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * weights
        averages.append(average)
    best = read_metrics(tmp_path / "run")["best_epoch"]
    saved = torch.load(tmp_path / "run" / "best.th", weights_only=True)["classifier.weight"]
    assert len(averages) == 10 and torch.allclose(saved, averages[5 * best + 4], atol=1e-6)
    assert torch.equal(WeightsOfSteps.epochs[0], WeightsOfSteps.steps[5])  # training goes on from the last step
    with_average = WeightsOfSteps.steps
    train_model(params(**changes), tmp_path / "plain")
    assert all(map(torch.equal, with_average, WeightsOfSteps.steps))
    loss = read_metrics(tmp_path / "plain")["validation_loss"]
    assert loss != read_metrics(tmp_path / "run")["validation_loss"]


def test_averages_and_momentum_survive_an_interrupt(tmp_path: Path) -> None:
    interrupted_and_recovered(
        tmp_path,
        interrupt=1,
        trainer__moving_average="exponential",
        trainer__optimizer={"type": "sgd", "lr": 0.1, "momentum": 0.9},
        trainer__momentum_scheduler={"type": "inverted_triangular", "cool_down": 1, "warm_up": 2},
    )


def momenta(count: int, optimizer: dict[str, Any], of_epochs: bool = False, **config: Any) -> list[Any]:
    """The momentum at each step of 20, or of 4 epochs."""
    made = make_optimizer(tiny_model(), **optimizer)
    scheduler = Lazy(MomentumScheduler, params=Params(config)).construct(
        optimizer=made, num_epochs=4, num_steps_per_epoch=5
    )
    found = []
    for _ in range(count):
        scheduler.step_batch()
        found.append(made.param_groups[0].get("momentum", made.param_groups[0].get("betas")))
        if of_epochs:
            scheduler.step(0.0)
    return found


def test_inverted_triangular_is_that_of_allennlp() -> None:
    config = {"type": "inverted_triangular", "cool_down": 2, "warm_up": 3, "ratio": 5}
    found = momenta(7, {"type": "sgd", "lr": 1.0, "momentum": 0.5}, True, **config)
    assert found == pytest.approx([0.5, 0.3, 0.1, 0.1 + 0.4 / 3, 0.1 + 0.8 / 3, 0.5, 0.5])


def test_one_cycle_is_that_of_torch() -> None:
    found = momenta(20, {"type": "adam", "lr": 1.0}, type="one_cycle", base_momentum=0.8, pct_start=0.25)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, 20, pct_start=0.25, base_momentum=0.8)
    expected = []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["betas"][0])
        optimizer.step()
        if len(expected) < 20:
            cycle.step()
    assert [beta for beta, _ in found] == pytest.approx(expected) and found[0][1] == 0.999
