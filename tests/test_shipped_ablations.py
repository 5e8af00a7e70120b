"""Every file in `training_configs/ablations` runs, on a tiny model and tiny data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.rendering.plots import plots_available
from tests.ablation_in_process import train_in_process
from tests.tiny_project import CONFIGS, run

ABLATIONS = sorted((CONFIGS / "ablations").glob("*.jsonnet"))
TINY = {"trainer.num_epochs": 1, "trainer.cuda_device": -1, "dataset_reader.max_instances": 40}
TRAININGS = {"distillation": 5, "pooling": 6, "hyperparameters": 12}
"""How many trainings each needs; the others differ in the policy only and share the base's."""


def ablate(path: Path, folder: Path) -> dict[str, Any]:
    files = [str(CONFIGS / "mrpc_beem.jsonnet"), str(path), "-s", str(folder)]
    run("ablate", *files, "-o", json.dumps(TINY))
    content: dict[str, Any] = json.loads((folder / "ablation.json").read_text())
    return content


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all ablations: the base is trained once."""
    return tmp_path_factory.mktemp("ablations") / "out"


@pytest.mark.parametrize("path", ABLATIONS, ids=lambda path: path.stem)
def test_ablation_runs(
    path: Path,
    tiny_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    request: pytest.FixtureRequest,
) -> None:
    for name, value in tiny_environment.items():
        monkeypatch.setenv(name, value)
    if path.stem != DRAWN:
        request.getfixturevalue("without_plots")
    commands, base = train_in_process(monkeypatch), folder.exists()
    content = ablate(path, folder)
    assert len(commands) == TRAININGS.get(path.stem, 1) - base
    assert not any(row["errors"] for row in content["rows"])
    for row in content["rows"]:
        assert 1 <= row["layer_speedup"]["median"] <= 3 and 0 <= row["metrics"]["accuracy_f1"]["median"] <= 1
        assert row["judged_on"] == "validation" and row["calibrated_on"] in ("train[holdout]", None)
    keys = {sweep["key"] for sweep in content["sweeps"]}
    assert keys == SWEPT.get(path.stem, set())
    for key in keys if plots_available() else ():
        name = "ablation_" + "_".join(key.split(".")[-2:])
        assert (folder / f"{name}.png").is_file() and (folder / f"{name}.svg").is_file()
    if path.stem == "hyperparameters":
        base, row = content["rows"]
        assert len(row["settings"]) == 12 and sum(entry["is_chosen"] for entry in row["settings"]) == 1
        best = max(entry["validation_score"] for entry in row["settings"])
        assert row["validation_score"]["median"] == best >= base["validation_score"]["median"]


DRAWN = "lambda"
SWEPT = {
    "alpha": {"model.exit_policy.thresholds.values", "model.exit_policy.patience"},
    "lambda": {"model.exit_policy.weights.scale"},
}


def test_the_papers_ablations_are_there() -> None:
    names = {path.stem for path in ABLATIONS}
    assert names == {
        "weights", "thresholds", "lambda", "alpha", "distillation", "pooling", "reset", "hyperparameters",
    }  # fmt: skip
