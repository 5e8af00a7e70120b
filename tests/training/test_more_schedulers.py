"""Restarting cosines, noam, and schedulers one after another, against AllenNLP's formulas."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, Params
from beem_plugin.training.learning_rate_schedulers import LearningRateScheduler
from beem_plugin.training.train import train_model
from tests.training.configs import params, read_metrics
from tests.training.interrupted import interrupted_and_recovered
from tests.training.test_optimization import make_optimizer, rates, tiny_model


def make(base: float = 1.0, **config: Any) -> tuple[Any, LearningRateScheduler]:
    optimizer = make_optimizer(tiny_model(), type="sgd", lr=base)
    scheduler = Lazy(LearningRateScheduler, params=Params(config)).construct(
        optimizer=optimizer, num_epochs=20, num_steps_per_epoch=10
    )
    return optimizer, scheduler


def rates_of_epochs(epochs: int, **config: Any) -> list[float]:
    """The rate at the start of each epoch."""
    optimizer, scheduler = make(**config)
    found = []
    for _ in range(epochs):
        found.append(optimizer.param_groups[0]["lr"])
        for _ in range(10):
            scheduler.step_batch()
        optimizer.step()
        scheduler.step(0.0)
    return found


def allennlp_cosine(epochs: int, t_initial: int, t_mul: float, eta_min: float, eta_mul: float) -> list[float]:
    """AllenNLP 2.10's CosineWithRestarts, as it counts."""
    found, last_restart, length, restarts = [1.0], 0, t_initial, 0
    for step in range(1, epochs):
        counter = step - last_restart
        if counter % length == 0:
            restarts, counter, last_restart = restarts + 1, 0, step
        length = int(t_initial * t_mul**restarts)
        rate = eta_mul**restarts
        found.append(eta_min + (rate - eta_min) / 2 * (math.cos(math.pi * (counter % length) / length) + 1))
    return found


@pytest.mark.parametrize(
    ("t_initial", "t_mul", "eta_min", "eta_mul"), [(30, 1.0, 0.0, 1.0), (4, 1.5, 0.1, 0.5), (1, 2.0, 0.0, 0.9)]
)
def test_cosine_is_that_of_allennlp(t_initial: int, t_mul: float, eta_min: float, eta_mul: float) -> None:
    found = rates_of_epochs(45, type="cosine", t_initial=t_initial, t_mul=t_mul, eta_min=eta_min, eta_mul=eta_mul)
    assert found == pytest.approx(allennlp_cosine(45, t_initial, t_mul, eta_min, eta_mul))


def test_cosine_that_changes_nothing_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    assert rates_of_epochs(3, type="cosine", t_initial=1) == [1, 1, 1]
    assert "every epoch restarts" in caplog.text
    with pytest.raises(ConfigurationError, match="t_initial: found 0, allowed: 1 or more"):
        make(type="cosine", t_initial=0)


def test_hard_restarts() -> None:
    found = rates("cosine_hard_restarts_with_warmup", 10, num_warmup_steps=2, num_cycles=2)
    half = [(1 + math.cos(math.pi * part)) / 2 for part in (0, 1 / 4, 2 / 4, 3 / 4)]
    assert found == pytest.approx([0.5, *half, *half, 0])
    found = rates("cosine_hard_restarts_with_warmup", 5, warmup_steps=0, num_training_steps=4)
    assert found == pytest.approx([*[(1 + math.cos(math.pi * part)) / 2 for part in (1 / 4, 2 / 4, 3 / 4)], 0, 0])
    with pytest.raises(ConfigurationError, match="num_cycles: found 0"):
        rates("cosine_hard_restarts_with_warmup", 1, num_cycles=0)


def test_noam() -> None:
    found = rates("noam", 4, model_size=16, warmup_steps=2, factor=2.0)
    scale = 2.0 * 16**-0.5
    expected = [1 * 2**-1.5, 2**-0.5, 3**-0.5, 4**-0.5]
    assert found == pytest.approx([scale * value for value in expected])
    with pytest.raises(ConfigurationError, match="warmup_steps: found 0, allowed: 1 or more"):
        rates("noam", 1, model_size=16, warmup_steps=0)


def test_combined_is_that_of_allennlp() -> None:
    """The case of AllenNLP's own test: the second scheduler starts from the rate with which the first one ended."""
    schedulers = [
        [2, {"type": "polynomial_decay", "warmup_steps": 10, "end_learning_rate": 0.5}],
        [5, {"type": "polynomial_decay", "warmup_steps": 0, "end_learning_rate": 0.1}],
    ]
    found = rates_of_epochs(9, type="combined", schedulers=schedulers)
    assert found == pytest.approx([0, 1, 0.5, 0.42, 0.34, 0.26, 0.18, 0.1, 0.1])


def test_combined_steps_the_next_scheduler_at_the_end_of_an_epoch() -> None:
    schedulers = [[2, "constant"], [2, {"type": "exponential", "gamma": 0.5}], [1, {"type": "step", "step_size": 2}]]
    found = rates_of_epochs(7, type="combined", schedulers=schedulers)
    # Each change of scheduler is a step of the new one: the step scheduler has its first in epoch 4, and drops in 5.
    assert found == pytest.approx([1, 1, 0.5, 0.25, 0.25, 0.025, 0.025])


@pytest.mark.parametrize("stop", [1, 3, 4, 6])
def test_combined_resumes_in_every_scheduler(stop: int) -> None:
    schedulers = [
        [2, {"type": "cosine", "t_initial": 3}],
        [2, {"type": "linear_with_warmup", "warmup_steps": 5}],
        [3, {"type": "multi_step", "milestones": [1, 2]}],
    ]
    config = {"type": "combined", "schedulers": schedulers}
    optimizer, scheduler = make(**config)
    found: dict[bool, list[float]] = {}
    for resumes in (False, True):
        optimizer, scheduler = make(**config)
        found[resumes] = []
        for epoch in range(8):
            for _ in range(7):
                optimizer.step()
                scheduler.step_batch()
                found[resumes].append(optimizer.param_groups[0]["lr"])
            if resumes and epoch == stop:
                states = optimizer.state_dict(), scheduler.state_dict()
                optimizer, scheduler = make(**config)
                optimizer.load_state_dict(states[0])
                scheduler.load_state_dict(states[1])
            scheduler.step(0.0)
    assert found[True] == found[False]


def test_combined_says_what_is_wrong_before_training(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigurationError, match="schedulers: found none"):
        make(type="combined", schedulers=[])
    with pytest.raises(ConfigurationError, match=r"schedulers.1.0: found 0, allowed"):
        make(type="combined", schedulers=[[1, "constant"], [0, "constant"]])
    with pytest.raises(ConfigurationError, match="warmup_steps: found 1.5"):
        make(type="combined", schedulers=[[1, "constant"], [1, {"type": "linear_with_warmup", "warmup_steps": 1.5}]])
    with pytest.raises(ConfigurationError, match="linear_with_warmup"):
        make(type="combined", schedulers=[[1, {"type": "no_such_scheduler"}]])
    rates_of_epochs(3, type="combined", schedulers=[[1, {"type": "linear_with_warmup"}], [1, "constant"]])
    assert "learning_rate_scheduler.schedulers.1 starts from 0" not in caplog.text
    rates_of_epochs(3, type="combined", schedulers=[[1, {"type": "polynomial_decay"}], [1, "constant"]])
    assert "learning_rate_scheduler.schedulers.1 starts from 0" in caplog.text


def test_a_plateau_needs_validation_data(tmp_path: Path) -> None:
    plateau = {"type": "reduce_on_plateau", "patience": 0}
    for scheduler in (plateau, {"type": "combined", "schedulers": [[1, "constant"], [1, plateau]]}):
        with pytest.raises(ConfigurationError, match="learning_rate_scheduler needs validation data"):
            train_model(params(trainer__learning_rate_scheduler=scheduler, validation_data_path=None), tmp_path / "run")


@pytest.mark.parametrize(
    "scheduler",
    [
        {"type": "cosine", "t_initial": 2, "eta_mul": 0.5},
        {"type": "cosine_hard_restarts_with_warmup", "num_warmup_steps": 2, "num_cycles": 2},
        {"type": "noam", "model_size": 6, "warmup_steps": 4, "factor": 0.1},
        {"type": "combined", "schedulers": [[2, {"type": "constant_with_warmup", "warmup_steps": 3}], [2, "noam_"]]},
    ],
)
def test_training_goes_on_where_it_was(scheduler: dict[str, Any], tmp_path: Path) -> None:
    if scheduler["type"] == "combined":
        scheduler["schedulers"][1][1] = {"type": "reduce_on_plateau", "patience": 0, "factor": 0.5}
    changes = {"trainer__learning_rate_scheduler": scheduler, "trainer__num_epochs": 4}
    interrupted_and_recovered(tmp_path, interrupt=3, **changes)
    assert read_metrics(tmp_path / "whole")["epoch"] == 3
