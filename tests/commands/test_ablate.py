"""`allennlp ablate` as a user runs it, on a tiny model."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.files import locked
from beem_plugin.comparison.trainings.launcher import Job, Launcher, no_steps
from beem_plugin.rendering.plots import plots_available
from tests.ablation_in_process import train_in_process
from tests.tiny_project import CONFIGS, Result, run

OVERRIDES = {
    "trainer.num_epochs": 2,
    "trainer.optimizer.lr": 2e-3,
    "trainer.cuda_device": -1,
    "dataset_reader.holdout_fraction": 0.3,
}
CONFIG = str(CONFIGS / "sst2_beem.jsonnet")
VARIANTS = {
    "patience": {"model": {"exit_policy": {"type": "patience", "patience": 1}}},
    "cost": {"model": {"exit_policy": {"weights": {"type": "cost", "scale": 0.3}}}},
    "other engine": {"model": {"engine": "single"}},
    "uniform": {"model": {"objective": {"layer_weights": "uniform"}}},
    "wrong training": {"model": {"objective": {"distillation": "sideways"}}},
    "wrong policy": {"model": {"exit_policy": {"weights": [1.0, 1.0]}}},
}


@pytest.fixture
def drawing_environment(tiny_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**tiny_environment, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def environment(drawing_environment: None, without_plots: None) -> None:
    pass


def ablate(folder: Path, *arguments: str, variants: object = VARIANTS, **overrides: object) -> Result:
    (folder / "variants.json").write_text(json.dumps(variants))
    changes = json.dumps({**OVERRIDES, **overrides})
    files = [CONFIG, str(folder / "variants.json"), "-s", str(folder / "out")]
    return run("ablate", *files, "-o", changes, *arguments, check=False)


def test_ablation_from_the_first_run_to_a_changed_config(
    drawing_environment: None, tmp_path: Path, in_process: list[Any]
) -> None:
    first = ablate(tmp_path)
    out = tmp_path / "out"
    assert first.returncode == 1, "two variants are wrong"
    content = json.loads((out / "ablation.json").read_text())
    rows = {row["name"]: row for row in content["rows"]}
    assert list(rows) == ["base", *VARIANTS]
    # Only the objective's change is a training of its own.
    shared = {rows[name]["training"] for name in ("base", "patience", "cost", "other engine", "wrong policy")}
    assert len(shared) == 1 and rows["uniform"]["training"] not in shared
    assert "objective.distillation: found 'sideways'" in rows["wrong training"]["errors"][0]
    assert "weights: found a list of 2, allowed: 3" in rows["wrong policy"]["errors"][0]
    assert rows["other engine"]["layer_speedup"] == rows["base"]["layer_speedup"]
    assert rows["base"]["calibrated_on"] == "train[holdout]" and rows["base"]["judged_on"] == "validation"
    assert rows["patience"]["calibrated_on"] is None
    assert (
        rows["base"]["parameters"] > rows["base"]["exit_parameters"] > 0 and rows["base"]["training_seconds"]["max"] > 0
    )
    assert rows["base"]["curve"]["layer_speedup"][0] == pytest.approx(1.0)
    with open(out / "ablation.csv", newline="") as file:
        lines = {line["name"]: line for line in csv.DictReader(file)}
    assert float(lines["cost"]["layer_speedup"]) == rows["cost"]["layer_speedup"]["median"]
    assert "sideways" in first.stdout and "wrong training" in (out / "ablation.md").read_text()
    policy = json.loads((out / "policies" / "cost" / "seed_1.json").read_text())
    assert policy["weights"] == pytest.approx([0.3, 0.6, 0.9]) and len(policy["thresholds"]) == 2
    if plots_available():
        assert (out / "ablation.png").read_bytes()[:4] == b"\x89PNG" and "<svg" in (out / "ablation.svg").read_text()

    # The figures are those of `allennlp train`.
    run("train", CONFIG, "-s", str(tmp_path / "alone"), "-o", json.dumps(OVERRIDES))
    metrics = json.loads((tmp_path / "alone" / "metrics.json").read_text())
    assert rows["base"]["metrics"]["accuracy"]["median"] == pytest.approx(metrics["test_early_exit_accuracy"])
    assert rows["base"]["layer_speedup"]["median"] == pytest.approx(metrics["test_early_exit_layer_speedup"])
    assert rows["base"]["seeds"][0]["exit_histogram"] == metrics["test_early_exit_exit_histogram"]

    # What is done is kept; a variant that shares a training needs none; the wrong one is tried again.
    weights = out / rows["base"]["training"] / "seed_1" / "best.th"
    before = weights.stat().st_mtime_ns
    more = {"confidence": {"model.exit_policy": {"type": "max_probability", "thresholds": 0.9}}, **VARIANTS}
    second = ablate(
        tmp_path, "--recover", variants={name: more[name] for name in ("confidence", "patience", "uniform")}
    )
    assert second.returncode == 0, second.stderr
    assert "2 of 2 done" in second.stderr and weights.stat().st_mtime_ns == before
    again = {row["name"]: row for row in json.loads((out / "ablation.json").read_text())["rows"]}
    assert again["patience"] == rows["patience"] and again["base"] == rows["base"]
    assert again["confidence"]["layer_speedup"]["median"] >= 1

    # Another config under a name that is trained.
    changed = ablate(tmp_path, variants={"uniform": {"model": {"objective": {"layer_weights": [1, 1, 2]}}}})
    assert changed.returncode == 1 and changed.stderr.count("\n") == 1
    assert (
        "variant 'uniform'" in changed.stderr
        and "model.objective.layer_weights: 'uniform' -> [1, 1, 2]" in changed.stderr
    )
    assert "--force" in changed.stderr and weights.stat().st_mtime_ns == before


def test_a_training_that_fails_in_its_process_does_not_stop_the_others(
    environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_process = Launcher.execute  # which gives the process the path of the package
    monkeypatch.chdir(tmp_path)
    trained = train_in_process(monkeypatch)
    here = Launcher.execute

    def execute(launcher: Launcher, job: Job, log_path: Path) -> int:
        if log_path.parent.name.startswith("other"):
            return here(launcher, job, log_path)
        return in_a_process(launcher, replace(job, steps=no_steps), log_path)

    monkeypatch.setattr(Launcher, "execute", execute)
    other = {"other": {"model.objective.layer_weights": "uniform", "dataset_reader.task": "sst2"}}
    wrong = {"trainer.num_epochs": 1, "dataset_reader.task": "sst3"}
    result = ablate(tmp_path, "--jobs", "2", variants=other, **wrong)
    assert result.returncode == 1
    base, found = json.loads((tmp_path / "out" / "ablation.json").read_text())["rows"]
    assert not found["errors"] and found["layer_speedup"]["median"] >= 1 and len(trained) == 1
    assert "dataset_reader.task: found 'sst3'" in base["errors"][0] and "layer_speedup" not in base
    assert "(exit status 1, " in base["errors"][0]
    assert "error: " in next((tmp_path / "out" / "trainings").glob("base-*/seed_1.log")).read_text()


def test_an_interrupted_training_goes_on(environment: None, tmp_path: Path, in_process: list[Any]) -> None:
    ablate(tmp_path, variants={}, **{"trainer.num_epochs": 1})
    (training,) = (tmp_path / "out" / "trainings").iterdir()
    # As if it had been killed before the end: the archive of the best epoch may be there all the same.
    (training / "seed_1.json").unlink()
    epoch = (training / "seed_1" / "metrics_epoch_0.json").stat()
    result = ablate(tmp_path, "--seeds", "2", variants={}, **{"trainer.num_epochs": 1})
    assert result.returncode == 0, result.stderr
    assert len(in_process) == 3
    assert (training / "seed_1" / "metrics_epoch_0.json").stat() == epoch, "is not trained again"
    row = json.loads((tmp_path / "out" / "ablation.json").read_text())["rows"][0]
    assert [seed["seed"] for seed in row["seeds"]] == [1, 2]
    configs = [json.loads((training / f"seed_{seed}" / "config.json").read_text()) for seed in (1, 2)]
    assert [config["pytorch_seed"] for config in configs] == [133, 134]
    traces = [ExitTrace.load(next((training / f"seed_{seed}.traces").glob("validation*"))) for seed in (1, 2)]
    assert not torch.equal(traces[0].logits, traces[1].logits)


def test_force_deletes_an_ablation_and_nothing_else(environment: None, tmp_path: Path, in_process: list[Any]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    refused = ablate(tmp_path, "--force", variants={})
    assert refused.returncode == 1 and "holds something else" in refused.stderr
    (tmp_path / "out" / "precious").unlink()
    assert ablate(tmp_path, variants={}, **{"trainer.num_epochs": 1}).returncode == 0
    assert ablate(tmp_path, variants={}, **{"trainer.num_epochs": 2}).returncode == 1
    with locked(tmp_path / "out", "locked twice"):
        refused = ablate(tmp_path, "--force", variants={})
    assert "out: another process trains in it" in refused.stderr and (tmp_path / "out" / "ablation.md").exists()
    assert ablate(tmp_path, "--force", variants={}, **{"trainer.num_epochs": 2}).returncode == 0
    assert len(list((tmp_path / "out" / "trainings").iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "variants", "message"),
    [
        (["--seeds", "0"], {}, "--seeds: found 0, allowed: 1 or more"),
        (["--recover"], {}, "--recover: there is no ablation in"),
        (["--recover", "--force"], {}, "contradict each other"),
        ([], {"a": {"trainer.lr.x": 1}}, "variants.json: variant 'a': override 'trainer.lr.x'"),
        ([], 3, "variants.json: variants: found a int"),
        (
            [],
            {"fine": {}, "typo": {"model": {"exit_policy": {"weigths": "cost"}}}},
            "variants.json: variant 'typo': model.exit_policy.weigths: unknown key of beem, allowed: weights",
        ),
        (
            [],
            {"a": {"model.exit_policy": {"type": "bem"}}},
            "variant 'a': model.exit_policy.type: found 'bem', allowed: beem",
        ),
        ([], {"a": {"model.exit_policy": 3}}, "variant 'a': model.exit_policy: found 3"),
        (
            [],
            {"a": {"model.exit_policy": {"type": "calibrated", "policy": "margin"}}},
            "variant 'a': margin.thresholds: found nothing",
        ),
        (
            [],
            {"a": {"model.exit_policy.thresholds": "error_rat"}},
            "found 'error_rat', allowed: a number, a list of them, or one of error_rate",
        ),
        (
            [],
            {"g": {"grid": {"model.exit_policy.thresholds.type": ["error_rate", "budgte"]}}},
            "variant 'g[type=budgte]': model.exit_policy.thresholds.type: found 'budgte'",
        ),
        ([], {"a": {"model.engine": "compacton"}}, "variant 'a': model.engine.type: found 'compacton'"),
        (
            [],
            {"a": {"trainer.callbacks": [{"type": "calibrate_exits", "bath_size": 8}]}},
            "variant 'a': trainer.callbacks.0.bath_size: unknown key of calibrate_exits",
        ),
        ([], {"a": {"model.objectiv": "final_exit"}}, "variant 'a': model.objectiv: unknown key"),
        ([], {"a": {"train_data_path": "train"}}, "variant 'a': calibrate_exits.data: not given"),
        (
            [],
            {"a": {"test_data_path": None, "validation_data_path": None}},
            "variant 'a': found neither test_data_path",
        ),
    ],
)
def test_errors_are_one_line(
    environment: None, tmp_path: Path, arguments: list[str], variants: object, message: str
) -> None:
    result = ablate(tmp_path, *arguments, variants=variants)
    assert result.returncode == 1 and message in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
