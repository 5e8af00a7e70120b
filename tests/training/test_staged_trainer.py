"""Training in stages: what moves, where a stage starts, what a recovery repeats, what is said of a wrong config."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from beem_plugin.archival import load_archive
from beem_plugin.common.errors import BeemError, ConfigurationError
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.training.train import train_model
from beem_plugin.training.trainer import TrainingError
from tests.forked import train_twice
from tests.training.configs import HERE, params
from tests.training.staged_configs import (
    BACKBONE,
    EXITS,
    LAST,
    ExitOnly,
    Inspect,
    moved,
    results,
    staged,
    train_and_kill,
    weights,
)

#: As DeeBERT: the network with its last exit, then the other exits on the frozen network.
TWO_STAGES: list[dict[str, Any]] = [
    {"name": "network", "no_grad": [EXITS], "objective": {"type": "exit_only", "first": 2}},
    {
        "name": "exits",
        "no_grad": [BACKBONE, LAST],
        "objective": {"type": "exit_only", "last": 2},
        "optimizer": {"type": "adamw", "lr": 0.02, "weight_decay": 0.1},
        "learning_rate_scheduler": {"type": "linear_with_warmup", "warmup_steps": 2},
    },
]


def matching(names: set[str], *regexes: str) -> set[str]:
    return {name for name in names if any(re.search(regex, name) for regex in regexes)}


@pytest.fixture
def seen() -> list[dict[str, Any]]:
    Inspect.seen = []
    return Inspect.seen


def test_each_stage_moves_its_own_parameters_and_no_other(tmp_path: Path, seen: list, caplog: Any) -> None:
    stages = [{**stage, "callbacks": ["inspect"]} for stage in TWO_STAGES]
    with caplog.at_level(logging.INFO):
        model = train_model(staged(stages), tmp_path / "run")
    initial = train_model(staged(TWO_STAGES), tmp_path / "dry", dry_run=True)
    assert model is not None and initial is not None
    first, second = (tmp_path / "run" / name for name in ("stage_1_network", "stage_2_exits"))
    names = set(initial.state_dict())
    after_first = {name: value for name, value in weights(first / "best.th").items() if name in names}
    assert "objective.scale" not in names
    moved_first = moved(initial.state_dict(), after_first)
    assert moved_first and not matching(moved_first, EXITS)
    assert matching(moved_first, BACKBONE) and matching(moved_first, LAST) == matching(names, LAST)
    # Stage 1's freezing ends with it; weight decay alone would move a frozen parameter that the optimizer still had.
    assert moved(after_first, weights(tmp_path / "run" / "best.th")) == matching(names, EXITS)
    for found, frozen in zip(seen, ([EXITS], [BACKBONE, LAST])):
        assert not matching(found["optimizer"], *frozen) and not matching(found["gradients"], *frozen)
        assert found["state_at_start"] == 0 and found["has_data"] and "objective.scale" in found["optimizer"]
    assert not matching(seen[1]["training"], BACKBONE) and "encoder.exits.0" in seen[1]["training"]
    assert matching(seen[0]["training"], BACKBONE)
    assert all(parameter.requires_grad for parameter in model.parameters()) and not model.training
    total = sum(parameter.numel() for parameter in initial.parameters()) + 1
    counts = [results(tmp_path / "run")[f"stage_{name}_trainable_parameters"] for name in ("network", "exits")]
    exits = sum(value.numel() for name, value in initial.state_dict().items() if re.search(EXITS, name))
    assert counts == [total - exits, exits + 1]
    said = f'stage 2 of 2, "exits": {exits + 1:,} trainable parameters, {total - exits - 1:,} frozen'
    assert said in caplog.text


def test_frozen_network_runs_without_dropout(tmp_path: Path, seen: list) -> None:
    """So that a frozen teacher says the same of a sample in every epoch."""
    train_model(staged([{**TWO_STAGES[1], "callbacks": ["inspect"]}]), tmp_path)
    assert not matching(seen[0]["training"], BACKBONE, LAST)


def test_a_stage_starts_from_the_best_weights_of_the_one_before(tmp_path: Path) -> None:
    """Ten samples are soon learned by heart: the last epoch of the first stage is not its best."""
    overfit = {"num_epochs": 8, "optimizer": {"type": "adam", "lr": 0.3}}
    # A rate of zero keeps the second stage where it starts.
    second = {"name": "second", "optimizer": {"type": "sgd", "lr": 0.0}}
    stages: list[dict[str, Any]] = [{"name": "first", **overfit}, second]
    train_model(staged(stages, train_data_path="train:10"), tmp_path)
    metrics = results(tmp_path)
    assert metrics["stage_first_best_epoch"] < 7
    best = weights(tmp_path / "stage_1_first" / "best.th")
    assert not moved(best, weights(tmp_path / "best.th"))
    assert moved(best, weights(tmp_path / "stage_1_first" / "model_state_e8_b0.th"))
    best_epoch = results(tmp_path / "stage_1_first", f"metrics_epoch_{metrics['stage_first_best_epoch']}.json")
    assert metrics["stage_first_best_validation_loss"] == best_epoch["validation_loss"]
    assert metrics["best_validation_loss"] == metrics["stage_second_best_validation_loss"]
    assert metrics["validation_loss"] == pytest.approx(best_epoch["validation_loss"])


def test_one_stage_is_an_ordinary_training(tmp_path: Path) -> None:
    options = {"num_epochs": 3, "optimizer": {"type": "adam", "lr": 0.05}}
    train_model(params(model__dropout=0.3), tmp_path / "plain")
    config = staged([{"name": "only", **options}], model={"type": "tiny", "dropout": 0.3})
    train_model(config, tmp_path / "staged")
    plain, in_stages = results(tmp_path / "plain"), results(tmp_path / "staged")
    assert {name: value for name, value in in_stages.items() if not name.startswith("stage_")} == plain
    assert not moved(weights(tmp_path / "plain" / "best.th"), weights(tmp_path / "staged" / "best.th"))


def test_objective_of_a_stage_is_put_back(tmp_path: Path, seen: list) -> None:
    """An objective with parameters neither stays in the model nor gets into the archive."""
    stages = [{**stage, "callbacks": ["inspect"]} for stage in TWO_STAGES]
    config = staged(stages, test_data_path="test:13", evaluate_on_test=True)
    model = train_model(config, tmp_path)
    objectives = [found["objective"] for found in seen]
    assert [type(objective) for objective in objectives] == [ExitOnly, ExitOnly]
    assert objectives[0] is not objectives[1] and model is not None and model.objective not in objectives
    # 37 samples in batches of 8, two epochs; each stage counts its own steps.
    assert objectives[0].steps == objectives[1].steps == [(step, 10) for step in range(10)]
    assert "objective.scale" in weights(tmp_path / "stage_2_exits" / "best.th")
    archive = load_archive(tmp_path / "model.tar.gz")
    assert not moved(archive.model.state_dict(), model.state_dict())
    assert results(tmp_path)["test_loss"] > 0


EVERYTHING: dict[str, Any] = {
    "train_data_path": "train:61",
    "trainer": {
        "num_gradient_accumulation_steps": 2,
        "checkpointer": {"save_every_num_batches": 2},
        "callbacks": ["kill_in_stage"],
        "grad_norm": 1.0,
    },
}
KILLABLE = [{**TWO_STAGES[0], "callbacks": ["kill_in_stage"]}, TWO_STAGES[1]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole") / "run"
    torch.set_num_threads(1)
    train_model(staged(KILLABLE, **EVERYTHING), directory)
    return directory


@pytest.mark.parametrize("kill_at", ["stage_1_network:1:4", "stage_2_exits:0:2", "stage_2_exits:1:6"])
def test_killed_run_recovers_to_the_last_digit(tmp_path: Path, whole: Path, kill_at: str) -> None:
    """In stage 1, in stage 2 before its first checkpoint, and in stage 2 after one."""
    config = staged(KILLABLE, **EVERYTHING)
    run = tmp_path / "killed"
    train_and_kill(config, run, kill_at)
    last = run / "stage_1_network" / "training_state_e2_b0.th"
    assert last.exists() == kill_at.startswith("stage_2") and not (run / "metrics.json").exists()
    before = last.stat().st_mtime_ns if last.exists() else None
    train_model(config, run, recover=True)
    assert before is None or last.stat().st_mtime_ns == before
    assert results(whole) == results(run)
    for name in ("best.th", "stage_1_network/best.th", "stage_2_exits/model_state_e2_b0.th"):
        assert not moved(weights(whole / name), weights(run / name))


def test_recovering_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    config = staged(TWO_STAGES, test_data_path="test:13", evaluate_on_test=True)
    train_model(config, tmp_path)
    before, best = results(tmp_path), weights(tmp_path / "best.th")
    train_model(config, tmp_path, recover=True)
    assert results(tmp_path) == before and not moved(best, weights(tmp_path / "best.th"))


def test_callbacks_of_the_trainer_run_in_the_last_stage(
    tmp_path: Path, seen: list, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """calibrate_exits among them writes to the run's directory, from where it is archived."""
    calibrate = {"type": "calibrate_exits", "data": "calibration:30"}
    trainer = {"callbacks": ["inspect", calibrate], "num_epochs": 1}
    policy = {"exit_policy": {"type": "max_probability", "thresholds": 0.99999}}
    config = staged(TWO_STAGES, trainer=trainer).as_dict(quiet=True)
    config["model"].update(policy)
    train_model(type(staged(TWO_STAGES))(config), tmp_path)
    assert [found["directory"] for found in seen] == [tmp_path] and not matching(seen[0]["optimizer"], BACKBONE)
    assert (tmp_path / "calibration").is_dir()
    assert "max_probability on 30 samples calibration:30" in " ".join(capsys.readouterr().err.split())
    assert results(tmp_path)["calibration_early_share"] == 0.0 and "what helps: better exits" in caplog.text
    assert results(tmp_path)["calibration_samples"] == 30 and "best_validation_early_exit_accuracy" in results(tmp_path)
    archive = load_archive(tmp_path / "model.tar.gz")
    assert archive.calibration is not None


def test_interrupted_stage_is_archived_from_the_latest_best_weights(tmp_path: Path) -> None:
    """In the second stage before its first epoch ends: the weights are the first stage's."""
    stages = [TWO_STAGES[0], {**TWO_STAGES[1], "callbacks": [{"type": "interrupt", "epoch": 0}]}]
    with pytest.raises(KeyboardInterrupt):
        train_model(staged(stages), tmp_path)
    assert (tmp_path / "model.tar.gz").exists()
    metrics = results(tmp_path)
    assert metrics["best_validation_loss"] == metrics["stage_network_best_validation_loss"]
    assert "stage_exits_best_epoch" not in metrics
    first = weights(tmp_path / "stage_1_network" / "best.th")
    assert all(torch.equal(value, first[name]) for name, value in weights(tmp_path / "best.th").items())


def test_requirement_stops_the_training_or_warns(tmp_path: Path, caplog: Any) -> None:
    require = {"metric": "accuracy", "at_least": 1.01}
    stages = [{**TWO_STAGES[0], "require": require}, TWO_STAGES[1]]
    with pytest.raises(
        TrainingError, match=r'stage "network": the best validation accuracy is .*at least 1\.01.*require'
    ):
        train_model(staged(stages), tmp_path / "error")
    assert not (tmp_path / "error" / "stage_2_exits").exists() and (tmp_path / "error" / "model.tar.gz").exists()
    stages[0]["require"] = {**require, "on_failure": "warn"}
    train_model(staged(stages, trainer={"num_epochs": 1}), tmp_path / "warn")
    assert "required: at least 1.01" in caplog.text and (tmp_path / "warn" / "stage_2_exits" / "best.th").exists()
    stages[0]["require"] = {"metric": "accuracy", "at_least": 0.0, "at_most": 1.0}
    train_model(staged(stages, trainer={"num_epochs": 1}), tmp_path / "met")


@DatasetReader.register("tiny_unlabelled", exist_ok=True)
class TinyUnlabelled(DatasetReader.by_name("tiny")):  # type: ignore[misc]
    def read(self, source: str) -> list:
        instances = super().read(source)
        for instance in instances:
            instance.label = None if source.startswith("unlabelled") else instance.label
        return instances


def test_a_stage_may_train_on_other_data_without_labels(tmp_path: Path) -> None:
    second = {
        **TWO_STAGES[1],
        "objective": "distil_without_labels",
        "train_data_path": "unlabelled:50",
        "data_loader": {"type": "simple", "batch_size": 25},
    }
    stages = [TWO_STAGES[0], second]
    train_model(staged(stages, dataset_reader={"type": "tiny_unlabelled"}), tmp_path)
    state = weights(tmp_path / "stage_2_exits" / "training_state_e2_b0.th")
    assert state["steps_completed"] == 4
    assert results(tmp_path)["training_loss"] > 0 and "training_accuracy" not in results(tmp_path)


@pytest.mark.parametrize(
    ("stage", "trainer", "message"),
    [
        ({"no_grads": []}, {}, "trainer.stages.1.no_grads: unknown key of Stage, allowed: no_grad"),
        ({"cuda_device": 0}, {}, "trainer.stages.1.cuda_device: unknown key"),
        ({"no_grad": ["nothing"]}, {}, "trainer.stages.1.no_grad: 'nothing' matches no parameter"),
        ({"no_grad": ["."]}, {}, "trainer.optimizer: optimizer: there is no trainable parameter"),
        ({"no_grad": "exits"}, {}, "trainer.stages.1.no_grad: found 'exits'"),
        ({}, {"no_grad": ["nothing"]}, "trainer.no_grad: 'nothing' matches no parameter"),
        ({"optimizer": {"type": "adam", "rl": 1}}, {}, "trainer.stages.1.optimizer.rl: unknown key"),
        ({"objective": {"type": "exit_only", "frist": 1}}, {}, "trainer.stages.1.objective.frist: unknown key"),
        ({"objective": "learned_exit"}, {}, "trainer.stages.1.objective: LearnedExit trains the signals"),
        ({"no_grad": ["@exit"]}, {}, "trainer.stages.1.no_grad: found '@exit', allowed: @exits"),
        ({"objective": "exit"}, {}, "trainer.stages.1.objective: found 'exit'"),
        ({"validation_metric": "+accurracy"}, {}, "trainer.stages.1.validation_metric: found 'accurracy'"),
        ({"num_epochs": 0}, {}, "trainer.stages.1.num_epochs: found 0"),
        ({"name": "a"}, {}, "trainer.stages: found the names a, a, allowed: each name once"),
        ({"name": "../b"}, {}, "trainer.stages.1.name: found '../b', allowed: letters"),
        ({"require": {"metric": "f1", "at_least": 1}}, {}, "trainer.stages.1.require.metric: found 'f1'"),
        ({"require": {"metric": "f1"}}, {}, "trainer.stages.1.require.at_least: missing"),
        ({"train_data_path": "train:0"}, {}, "trainer.stages.1.train_data_path: there is no instance"),
        ({}, {"num_epoch": 3}, "trainer.num_epoch: unknown key of staged, allowed: num_epochs"),
    ],
)
def test_every_stage_is_checked_before_training(
    tmp_path: Path, stage: dict[str, Any], trainer: dict[str, Any], message: str
) -> None:
    stages = [{"name": "a"}, {"name": "b", **stage}]
    with pytest.raises(BeemError) as caught:
        train_model(staged(stages, trainer=trainer), tmp_path / "run", dry_run=True)
    assert str(caught.value).startswith(message), str(caught.value)
    assert not (tmp_path / "run").exists()


def test_model_without_an_objective_takes_none(tmp_path: Path) -> None:
    stages = [{"name": "a", "objective": "exit_only"}]
    with pytest.raises(ConfigurationError, match=r"trainer\.stages\.0\.objective: .* TinyModel has no `objective`"):
        train_model(staged(stages, model={"type": "tiny"}), tmp_path / "run")
    with pytest.raises(ConfigurationError, match=r"trainer\.stages: found none"):
        train_model(staged([]), tmp_path / "run")


def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    model = {"type": "tiny"}
    stages = [{"name": "a", "no_grad": ["classifier"]}, {"name": "b", "no_grad": ["^embedding", "^encoder"]}]
    train_model(staged(stages, model=model, test_data_path="test:13", evaluate_on_test=True), tmp_path / "one")
    loader = {"type": "simple", "batch_size": 4, "shuffle": True}
    config = staged(stages, model=model, data_loader=loader, test_data_path="test:13", evaluate_on_test=True)
    config_path, run = tmp_path / "config.json", tmp_path / "two"
    config_path.write_text(json.dumps(config.as_dict(quiet=True)))
    given = (str(config_path), "-s", str(run), "--include-package", "tiny_components")
    for finished in train_twice(*given, folder=tmp_path, path=HERE):
        assert finished.returncode == 0, finished.stderr
    assert results(run) == pytest.approx(results(tmp_path / "one"), abs=1e-5)
