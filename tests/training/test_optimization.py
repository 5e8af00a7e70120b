"""Freezing, parameter groups, accumulation, clipping and learning rates, against values worked out by hand."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy, Params
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.training.learning_rate_schedulers import LearningRateScheduler
from beem_plugin.training.optimizers import Optimizer
from beem_plugin.training.parameter_groups import frozen_modules_to_eval
from beem_plugin.training.train import train_model
from tests.training.configs import params, read_metrics
from tests.training.tiny_components import Record, TinyModel


def tiny_model(dropout: float = 0.0) -> TinyModel:
    torch.manual_seed(0)
    return TinyModel(Vocabulary(["low", "high"]), dropout)


def make_optimizer(model: torch.nn.Module, **config: Any) -> Optimizer:
    return Lazy(Optimizer, params=Params(config)).construct(model_parameters=list(model.named_parameters()))


def rates(name: str, steps: int, num_epochs: int = 2, num_steps_per_epoch: int = 5, **config: Any) -> list[float]:
    """The learning rates of the first optimizer steps, where the optimizer's own rate is 1."""
    optimizer = make_optimizer(tiny_model(), type="sgd", lr=1.0)
    scheduler = Lazy(LearningRateScheduler, params=Params({"type": name, **config})).construct(
        optimizer=optimizer, num_epochs=num_epochs, num_steps_per_epoch=num_steps_per_epoch
    )
    found = []
    for _ in range(steps):
        scheduler.step_batch()
        found.append(optimizer.param_groups[0]["lr"])
    return found


def test_frozen_parameters_do_not_move_and_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    optimizer = {"type": "adamw", "lr": 0.05, "weight_decay": 0.5}
    with caplog.at_level(logging.INFO):
        model = train_model(
            params(trainer__no_grad=["^embedding", r"encoder\.0"], trainer__optimizer=optimizer), tmp_path
        )
    # 20 * 6 embeddings and 6 * 6 + 6 of the encoder; 2 * 6 + 2 of the classifier.
    assert "Trainable parameters: 14, frozen parameters: 162" in caplog.text
    torch.manual_seed(133)
    initial = TinyModel(Vocabulary(["low", "high"])).state_dict()
    assert model is not None
    for name, value in model.state_dict().items():
        assert torch.equal(value, initial[name]) == (not name.startswith("classifier")), name


def test_frozen_modules_run_without_dropout() -> None:
    model = tiny_model(dropout=0.5)
    for parameter in model.encoder.parameters():
        parameter.requires_grad_(False)
    model.train()
    frozen_modules_to_eval(model)
    assert not model.encoder[2].training
    assert model.dropout.training and model.classifier.training


def test_parameter_groups_by_regex(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model()
    groups = [
        [["bias"], {"weight_decay": 0.0}],
        [["embedding"], {"requires_grad": False}],
        [["LayerNorm", "classifier.weight"], {"lr": 0.5}],
    ]
    optimizer = make_optimizer(model, type="adamw", lr=0.1, weight_decay=0.3, parameter_groups=groups)
    found = [(len(g["params"]), g["lr"], g["weight_decay"]) for g in optimizer.param_groups]
    assert found == [(2, 0.1, 0.0), (1, 0.5, 0.3), (1, 0.1, 0.3)]
    assert not model.embedding.weight.requires_grad
    assert "'LayerNorm' matches no trainable parameter" in caplog.text
    with pytest.raises(ConfigurationError, match=r"'classifier.bias' matches several groups, by 'bias' and 'class'"):
        make_optimizer(model, type="adam", parameter_groups=[[["bias"], {}], [["class"], {}]])


@pytest.mark.parametrize(
    "name", ["adam", "adamw", "huggingface_adamw", "sgd", "rmsprop", "adagrad", "adadelta", "adamax"]
)
def test_every_optimizer_makes_a_step(name: str) -> None:
    model = tiny_model()
    optimizer = make_optimizer(model, type=name, lr=0.1)
    before = model.classifier.weight.detach().clone()
    model.classifier(torch.ones(1, 6)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model.classifier.weight, before)


@pytest.mark.parametrize("samples", [32, 37])
def test_accumulated_batches_make_the_steps_of_large_ones(tmp_path: Path, samples: int) -> None:
    """37 samples: the last window of 16 has 5, in batches of 4 and 1."""
    source = {"train_data_path": f"train:{samples}", "trainer__grad_norm": 0.1, "trainer__optimizer__type": "sgd"}
    train_model(params(**source, data_loader__batch_size=16), tmp_path / "large")
    small = params(**source, data_loader__batch_size=4, trainer__num_gradient_accumulation_steps=4)
    train_model(small, tmp_path / "small")
    assert read_metrics(tmp_path / "small") == pytest.approx(read_metrics(tmp_path / "large"), abs=1e-6)


def test_callbacks_and_scheduler_are_called_once_a_step(tmp_path: Path) -> None:
    """5 batches an epoch in windows of 2: 3 steps an epoch, 9 in all."""
    changes = {
        "trainer__callbacks": ["record"],
        "trainer__num_gradient_accumulation_steps": 2,
        "trainer__learning_rate_scheduler": {"type": "linear_with_warmup", "warmup_steps": 3},
    }
    train_model(params(**changes), tmp_path)
    window = ["backward", "backward", "batch"]
    epoch = [*window, *window, "backward", "batch", "epoch"]
    assert Record.calls == ["start", *epoch, *epoch, *epoch, "end"]
    expected = [0.05 * factor for factor in (1 / 3, 2 / 3, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0)]
    assert Record.rates == pytest.approx(expected)


def test_learning_rates_by_hand() -> None:
    assert rates("constant", 3) == [1, 1, 1]
    assert rates("constant_with_warmup", 4, warmup_steps=3) == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert rates("constant_with_warmup", 4, num_warmup_steps=2) == pytest.approx([0.5, 1, 1, 1])
    linear = [0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0, 0]
    assert rates("linear_with_warmup", 11, warmup_steps=2) == pytest.approx(linear)
    assert rates("linear_with_warmup", 11, warmup_steps=0.2) == pytest.approx(linear)
    assert rates("linear_with_warmup", 2, warmup_steps=0.11) == pytest.approx([0.5, 1])
    assert rates("linear_with_warmup", 2) == pytest.approx([0.01, 0.02])
    square = rates("polynomial_decay", 10, power=2.0, end_learning_rate=0.1)
    assert square == pytest.approx([0.9 * ((10 - step) / 10) ** 2 + 0.1 for step in range(1, 10)] + [0.1])
    cosine = rates("cosine_with_warmup", 10, warmup_steps=2)
    assert [cosine[0], cosine[1], cosine[5], cosine[9]] == pytest.approx([0.5, 1, 0.5, 0])
    slanted = rates("slanted_triangular", 10, cut_frac=0.2, ratio=4)
    assert [slanted[0], slanted[1], slanted[5], slanted[9]] == pytest.approx([0.625, 1, 0.625, 0.25])
    with pytest.raises(ConfigurationError, match="warmup_steps: found 1.5"):
        rates("linear_with_warmup", 1, warmup_steps=1.5)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"type": "step", "step_size": 2}, [1, 0.1, 0.1, 0.01]),
        ({"type": "multi_step", "milestones": [1, 3], "gamma": 0.5}, [0.5, 0.5, 0.25, 0.25]),
        ({"type": "exponential", "gamma": 0.5}, [0.5, 0.25, 0.125, 0.0625]),
        ({"type": "reduce_on_plateau", "patience": 1, "factor": 0.5}, [1, 1, 0.5, 0.5]),
    ],
)
def test_epoch_schedulers_step_once_an_epoch_and_resume(config: dict, expected: list[float]) -> None:
    def make() -> tuple[Any, LearningRateScheduler]:
        optimizer = make_optimizer(tiny_model(), type="sgd", lr=1.0)
        return optimizer, Lazy(LearningRateScheduler, params=Params(config)).construct(optimizer=optimizer)

    optimizer, scheduler = make()
    found = []
    for metric in (-1.0, -2.0, -2.0, -0.5):
        for _ in range(3):
            scheduler.step_batch()
        optimizer.step()
        scheduler.step(metric)
        found.append(optimizer.param_groups[0]["lr"])
        states = optimizer.state_dict(), scheduler.state_dict()
        optimizer, scheduler = make()
        optimizer.load_state_dict(states[0])
        scheduler.load_state_dict(states[1])
    assert found == pytest.approx(expected)


def test_gradients_are_clipped(tmp_path: Path) -> None:
    """With SGD the step is rate times gradient, so that the distance of one step shows the clipped norm."""
    torch.manual_seed(133)
    initial = TinyModel(Vocabulary(["low", "high"])).state_dict()
    one_step = {
        "data_loader__batch_size": 37,
        "trainer__num_epochs": 1,
        "trainer__optimizer": {"type": "sgd", "lr": 1.0},
    }

    def moved(name: str, **changes: Any) -> torch.Tensor:
        model = train_model(params(**one_step, **changes), tmp_path / name)
        assert model is not None
        return torch.cat([(value - initial[key]).flatten() for key, value in model.state_dict().items()])

    assert float(moved("norm", trainer__grad_norm=0.01).norm()) == pytest.approx(0.01, rel=1e-3)
    assert float(moved("value", trainer__grad_clipping=0.002).abs().max()) == pytest.approx(0.002, rel=1e-3)
    assert torch.equal(moved("free"), moved("measured", trainer__grad_norm=True))


def test_loss_that_is_no_number_stops_training(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"loss is nan in epoch \d, batch \d"):
        train_model(params(trainer__optimizer={"type": "sgd", "lr": 1e30}), tmp_path)


def test_bfloat16_trains_and_leaves_a_float32_model(tmp_path: Path) -> None:
    model = train_model(params(trainer__mixed_precision="bf16"), tmp_path)
    assert model is not None
    batch = {
        "input_ids": torch.ones(1, 3, dtype=torch.int64),
        "attention_mask": torch.ones(1, 3),
        "label": torch.tensor([0]),
    }
    exact = model.eval()(**batch)["logits"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(**batch)["logits"]
    assert exact.dtype == torch.float32 and not torch.equal(exact, rounded.float())
