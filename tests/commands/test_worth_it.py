"""`allennlp worth-it` as a user runs it, on a tiny model."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.rendering.plots import plots_available
from tests.tiny_project import CONFIGS, Result, run

OVERRIDES = {
    "trainer.num_epochs": 1,
    "trainer.optimizer.lr": 2e-3,
    "trainer.cuda_device": -1,
    "dataset_reader.holdout_fraction": 0.3,
}


@pytest.fixture
def environment(tiny_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**tiny_environment, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)


def worth_it(folder: Path, *arguments: str, config: str = "sst2_beem", **overrides: object) -> Result:
    changes = json.dumps({**OVERRIDES, **overrides})
    files = [str(CONFIGS / f"{config}.jsonnet"), "-s", str(folder / "out"), "-o", changes]
    return run("worth-it", *files, "--seeds", "1", *arguments, check=False)


def test_from_the_dry_run_to_the_answer(
    environment: None, tmp_path: Path, in_process: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    depths = ["--depths", "1", "--distill", "--speeds", "1.5", "3"]
    planned = worth_it(tmp_path, *depths, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "distilled network of 1 layer" in planned.stdout and "all 2.7, left 2.7" in planned.stdout
    assert not (tmp_path / "out").exists() and not in_process

    # As if it had been killed after the first trainings.
    with monkeypatch.context() as without_plots:
        without_plots.setitem(sys.modules, "matplotlib", None)
        first = worth_it(tmp_path, "--depths", "1", "--no-measure", "--speeds", "3")
    assert not (tmp_path / "out" / "worth_it.svg").exists()
    assert first.returncode == 0, first.stderr
    assert len(in_process) == 3 and "3 trainings, 1 seeds; 0 of 3 done" in first.stderr
    found = worth_it(tmp_path, *depths, "--cascades", "1,3")
    assert found.returncode == 0, found.stderr
    assert len(in_process) == 4, "what is trained is kept, the distilled network is new"
    out = tmp_path / "out"
    (distilled,) = (out / "trainings").glob("distilled*")
    objective = json.loads((distilled / "seed_1" / "config.json").read_text())["model"]["objective"]
    assert Path(objective["teacher"]).is_file() and "plain_network_of_3_layers" in objective["teacher"]

    content = json.loads((out / "worth_it.json").read_text())
    assert content["judged_on"] == "validation" and content["calibrated_on"] == "train[holdout]"
    assert content["samples"] == 40 and content["choice"]["depth"] in (1, 3)
    options = {one["name"]: one for one in content["options"]}
    plain = [name for name, one in options.items() if one["kind"] == "plain"]
    assert plain == ["plain network of 3 layers", "distilled network of 1 layer", "plain network of 1 layer"]
    assert options["plain network of 1 layer"]["layer_speedup"] == 3
    for one in options.values():
        assert set(one["measured_speedup"]) == {"single", "file"}
    assert [verdict["speed"] for verdict in content["verdicts"]] == [1.5, 3]
    assert content["answer"] in (out / "worth_it.md").read_text() and content["answer"] in found.stdout
    for verdict in content["verdicts"]:
        assert verdict["ship"] in options and verdict["sentence"] in found.stdout
        assert content["ships"][f"{verdict['speed']:g}x"]
    with open(out / "worth_it.csv", newline="") as file:
        assert [line["shipped"] for line in csv.DictReader(file)][0] == "plain network of 3 layers"
    if plots_available():
        assert "<svg" in (out / "worth_it.svg").read_text()
    again = worth_it(tmp_path, *depths, "--dry-run")
    assert "left 0.0" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "overrides", "message"),
    [
        (["--seeds", "0"], {}, "--seeds: found 0, allowed: 1 or more"),
        (["--depths", "4"], {}, "--depths: found 4, allowed: 1 to 3"),
        (["--speeds", "0.5"], {}, "--speeds: found 0.5, allowed: 1 or more"),
        (["--cascades", "3,1"], {}, "--cascades: found '3,1', allowed: two or more of the depths [1, 2, 3]"),
        (["--by", "file", "--no-measure"], {}, "--by: found file with --no-measure, allowed: layers"),
        ([], {"model.encoder.exit_layers": [3]}, "model.encoder.exit_layers: found [3], allowed: two exits or more"),
        ([], {"model.type": "multi_exit_tagger"}, "model.type: found 'multi_exit_tagger', allowed: a classifier"),
        ([], {"train_data_path": "train"}, "calibrate_exits.data: not given"),
        ([], {"model.exit_policy.weigths": 1}, "model.exit_policy.weigths: unknown key of beem"),
    ],
)
def test_errors_are_one_line(
    environment: None, tmp_path: Path, arguments: list[str], overrides: dict[str, object], message: str
) -> None:
    result = worth_it(tmp_path, *arguments, **overrides)
    assert result.returncode == 1 and message in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


def test_policies_are_built_before_anything_is_trained(environment: None, tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(json.dumps({"mine": {"type": "entropy", "normalised": True}}))
    result = worth_it(tmp_path, "--policies", str(tmp_path / "rules.json"))
    assert result.returncode == 1 and "rules.json: mine: normalised: unknown key of entropy" in result.stderr


def test_training_errors_are_named_and_no_answer_is_given(
    environment: None, tmp_path: Path, in_process: list[Any]
) -> None:
    result = worth_it(tmp_path, "--depths", "3", **{"model.objective.distillation": "sideways"})
    assert result.returncode == 1 and "objective.distillation: found 'sideways'" in result.stderr
    assert "not every network is trained" in result.stderr and not (tmp_path / "out" / "worth_it.json").exists()
