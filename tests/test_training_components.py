"""Differences to a method that the library of configs offers, trained through configs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import beem_plugin.components  # noqa: F401
from beem_plugin.archival import load_archive
from beem_plugin.common.params import load_config
from tests.tiny_project import CONFIGS, run

TINY = {
    "trainer.num_epochs": 1,
    "trainer.cuda_device": -1,
    "trainer.callbacks.0.batch_size": 32,
    "dataset_reader.max_instances": 60,
}
RECOMMENDED = "methods.recommended(layers=3, exits=[1, 2, 3], width=16)"


@pytest.fixture
def train(tiny_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    for name, value in tiny_environment.items():
        monkeypatch.setenv(name, value)

    def call(name: str, method: str) -> Path:
        config, folder = tmp_path / f"{name}.jsonnet", tmp_path / name
        lib = CONFIGS / "lib"
        config.write_text(
            f"local methods = import '{lib}/methods.libsonnet';\n(import '{lib}/glue.libsonnet').task('rte') + {method}"
        )
        run("train", str(config), "-s", str(folder), "-o", json.dumps(TINY))
        return folder

    return call


def metrics_of(folder: Path) -> dict[str, float]:
    return json.loads((folder / "metrics.json").read_text())


def test_recommended_is_distilled_from_an_archive(train: object) -> None:
    teacher = train("teacher", "methods.final")  # type: ignore[operator]
    method = f"methods.recommended_distilled('{teacher}/model.tar.gz', layers=3, exits=[1, 2, 3], width=16)"
    student = train("student", method)  # type: ignore[operator]
    archive = load_archive(student / "model.tar.gz")
    objective = archive.config["model"]["objective"]
    assert objective["type"] == "distilled" and objective["objective"]["teacher"] == "next"
    assert objective["reduction"] == objective["objective"]["reduction"] == "sum"
    assert metrics_of(student)["training_loss"] > 0
    assert archive.model.exit_policy.is_calibrated


@pytest.mark.parametrize(
    "method",
    [
        f"{RECOMMENDED} + methods.contrastive(keys='last')",
        f"{RECOMMENDED} + {{ model+: {{ encoder+: {{ fork: 'gradnorm', layer_dropout: {{}} }} }} }}",
        "methods.layer_skip(exits=[1, 3])",
        f"{RECOMMENDED} + methods.separate_reverse(exits=[1, 2, 3], epochs=1)",
    ],
)
def test_methods_train_calibrate_and_load(method: str, train: object) -> None:
    folder = train("run", method)  # type: ignore[operator]
    metrics = metrics_of(folder)
    assert metrics["test_early_exit_layer_speedup"] >= 1
    assert load_archive(folder / "model.tar.gz").model.exit_policy.is_calibrated
    if "separate_reverse" in method:
        assert [path.name for path in sorted(folder.glob("stage_*"))] == [
            *("stage_1_layer_3", "stage_2_layer_2", "stage_3_layer_1")
        ]


def test_layer_skip_weighs_exits_by_the_sum_of_the_layers_up_to_them(tmp_path: Path) -> None:
    file = tmp_path / "config.jsonnet"
    file.write_text(f"(import '{CONFIGS}/lib/methods.libsonnet').layer_skip(exits=[4, 6, 8], scale=0.5)")
    model = load_config(file)["model"]
    assert model["objective"]["layer_weights"] == [5, 10.5, 36]
    assert model["encoder"]["layer_dropout"] == {"max_rate": 0.2} and model["encoder"]["exit_layers"] == [4, 6, 8]


def test_the_distilled_recipe_trains_for_twice_the_epochs(tmp_path: Path) -> None:
    file = tmp_path / "config.jsonnet"
    file.write_text(
        f"{{ trainer: {{ num_epochs: 3 }}, model: {{}} }} + (import '{CONFIGS}/lib/methods.libsonnet')"
        ".recommended_distilled('runs/plain')"
    )
    config = load_config(file)
    assert config["trainer"]["num_epochs"] == 6
    assert config["model"]["objective"]["teacher"] == "runs/plain"
