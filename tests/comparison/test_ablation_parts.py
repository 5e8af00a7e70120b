"""The parts of `allennlp ablate` that need no training: what variants mean, what is shared and shown."""

from __future__ import annotations

import functools
import io
import json
import pickle
import signal
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from beem_plugin.calibration.curves import Curve
from beem_plugin.commands import SigTermReceived, sigterm_raises
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.params import diff_configs
from beem_plugin.comparison.ablation.rows import Row, compare_with_base, find_sweeps, keep_best, reference_of
from beem_plugin.comparison.ablation.table import ablation_table, csv_record, notes, trade_off_figure
from beem_plugin.comparison.ablation.variant_files import flat, in_one_line, read_variants
from beem_plugin.comparison.report import markdown
from beem_plugin.comparison.trainings.launcher import Job, Launcher, error_line, no_steps
from beem_plugin.comparison.trainings.runs import Training, TrainingRun, seeded
from beem_plugin.comparison.trainings.trainings import Trainings, train_all
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.rendering.plots import plots_available
from beem_plugin.rendering.tables import write_csv
from beem_plugin.training_process import RunJob

differences = functools.partial(diff_configs, whole_blocks=True)


def base() -> dict[str, Any]:
    return {
        "dataset_reader": {"type": "glue", "task": "rte", "data_dir": None},
        "model": {
            "type": "multi_exit_classifier",
            "encoder": {"backbone": {"model_name": "x"}, "share_pooler": True},
            "exit_policy": {"type": "beem", "weights": {"type": "accuracy"}, "thresholds": {"type": "error_rate"}},
        },
        "data_loader": {"batch_size": 16},
        "trainer": {
            "optimizer": {"type": "adamw", "lr": 3e-5},
            "num_epochs": 3,
            "callbacks": [{"type": "calibrate_exits"}, {"type": "track_epoch"}],
        },
    }


def configs(document: Any) -> dict[str, dict[str, Any]]:
    return {variant.name: variant.config for variant in read_variants(base(), document)}


def test_blocks_are_merged_and_the_base_is_not_changed() -> None:
    given = base()
    found = {v.name: v.config for v in read_variants(given, {"a": {"trainer": {"optimizer": {"lr": 1e-3}}}})}
    assert found["a"]["trainer"]["optimizer"] == {"type": "adamw", "lr": 1e-3}
    assert found["a"]["trainer"]["num_epochs"] == 3
    assert given == base() == found["base"]


def test_a_block_of_another_type_is_replaced() -> None:
    found = configs({"a": {"model": {"exit_policy": {"type": "patience", "patience": 2}}}})
    assert found["a"]["model"]["exit_policy"] == {"type": "patience", "patience": 2}
    assert found["a"]["model"]["encoder"] == base()["model"]["encoder"]


def test_dotted_keys_change_one_value_on_any_level() -> None:
    found = configs(
        {
            "top": {"trainer.optimizer.lr": 1.0, "model.exit_policy.weights": "cost"},
            "inside": {"trainer": {"optimizer.lr": 2.0, "callbacks.0.data": "train[holdout]"}},
            "diff": {"diff": {"trainer": {"num_epochs": 1}}, "overrides": {"data_loader.batch_size": 4}},
        }
    )
    assert (
        found["top"]["trainer"]["optimizer"]["lr"] == 1.0 and found["top"]["model"]["exit_policy"]["weights"] == "cost"
    )
    assert found["inside"]["trainer"]["optimizer"] == {"type": "adamw", "lr": 2.0}
    assert found["inside"]["trainer"]["callbacks"][0] == {"type": "calibrate_exits", "data": "train[holdout]"}
    assert found["diff"]["trainer"]["num_epochs"] == 1 and found["diff"]["data_loader"]["batch_size"] == 4


def test_null_is_a_value() -> None:
    found = configs({"a": {"trainer": {"callbacks": None}, "trainer.num_epochs": None}})
    assert found["a"]["trainer"]["callbacks"] is None and found["a"]["trainer"]["num_epochs"] is None


def test_a_list_of_variants_and_a_grid() -> None:
    found = read_variants(
        base(),
        [
            {"name": "one", "diff": {"data_loader": {"batch_size": 1}}},
            {
                "name": "g",
                "trainer.num_epochs": 9,
                "grid": {"data_loader.batch_size": [8, 32], "trainer.optimizer.lr": [2e-5]},
            },
            {"name": "h", "grid": {"trainer.optimizer": [{"type": "sgd"}]}, "select": "all"},
        ],
    )
    names = ["base", "one", "g[batch_size=8, lr=2e-05]", "g[batch_size=32, lr=2e-05]", 'h[optimizer={"type": "sgd"}]']
    assert [variant.name for variant in found] == names
    assert found[3].setting == {"data_loader.batch_size": 32, "trainer.optimizer.lr": 2e-5}
    assert found[3].config["trainer"]["num_epochs"] == 9 and found[3].is_candidate and found[3].family == "g"
    assert not found[4].is_candidate and found[4].config["trainer"]["optimizer"] == {"type": "sgd"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"a": {"trainer.optimiser.lr": 1}}, "variant 'a'.*trainer.optimiser.lr.*trainer.optimizer.lr"),
        ({"base": {}}, "two of this name"),
        ([{"diff": {}}], r"variants.0.*a `name`"),
        ([{"name": "a"}, {"name": "a"}], "variant 'a': two"),
        ({"a": 3}, "variant 'a': found 3"),
        ({"a": {"grid": {"x.y": 3}}}, "grid.x.y: found 3, allowed: a list"),
        ({"a": {"grid": {}}}, "grid: found {}"),
        ({"a": {"grid": {"data_loader.batch_size": [1]}, "select": "worst"}}, "select: found 'worst', allowed: "),
        ({"a": {"select": "best"}}, "with a `grid` only"),
        ({"plain": [4, "all"]}, r"variant 'plain': plain: found \[4, 'all'\], allowed: a list of numbers of layers"),
        ("text", "variants: found a str"),
    ],
)
def test_errors_name_the_variant(document: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_variants(base(), document)


def test_variants_that_differ_in_policy_calibration_or_engine_share_a_training(tmp_path: Path) -> None:
    variants = read_variants(
        base(),
        {
            "policy": {"model": {"exit_policy": {"type": "patience", "patience": 2}}},
            "engine": {"model": {"engine": "single"}},
            "calibration": {"trainer.callbacks.0.data": "validation"},
            "same": {"data_loader": {"batch_size": 16}},
            "lr": {"trainer.optimizer.lr": 1e-5},
            "lr, policy": {"trainer.optimizer.lr": 1e-5, "model.exit_policy": "final"},
        },
    )
    first, second = Trainings(variants, tmp_path).trainings
    assert [v.name for v in first.variants] == ["base", "policy", "engine", "calibration", "same"]
    assert [v.name for v in second.variants] == ["lr", "lr, policy"]
    assert first.config["trainer"]["callbacks"] == [{"type": "track_epoch"}]
    assert "exit_policy" not in first.config["model"] and "exit_policy" in base()["model"]


def test_no_callback_left_equals_none_given() -> None:
    with_one, without = base(), base()
    with_one["trainer"]["callbacks"] = ["calibrate_exits"]
    del without["trainer"]["callbacks"]
    first, second = (Variant("v", config, "v").trained_part for config in (with_one, without))
    assert first == second and "callbacks" not in first["trainer"]


def test_seed_1_is_the_configs_own() -> None:
    assert seeded({"random_seed": 5}, 1) == {"random_seed": 5, "numpy_seed": 1337, "pytorch_seed": 133}
    assert seeded({"random_seed": 5, "numpy_seed": None}, 3) == {
        "random_seed": 7,
        "numpy_seed": 1339,
        "pytorch_seed": 135,
    }


def test_another_config_under_a_trained_name_is_an_error_that_names_the_keys(tmp_path: Path) -> None:
    def trainings(lr: float) -> Trainings:
        return Trainings(read_variants(base(), {"a": {"trainer.optimizer.lr": lr}}), tmp_path)

    first = trainings(1.0)
    first.remember()
    trainings(2.0).remember()  # nothing was trained, so there is nothing to mix up
    first.remember()
    run = TrainingRun(first.of["a"], 1)
    run.serialization_dir.mkdir()
    (run.serialization_dir / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"variant 'a' .*trainer.optimizer.lr: 1.0 -> 2.0; give the variant"):
        trainings(2.0).remember()
    first.remember()


def test_a_distilled_network_waits_for_its_teacher(tmp_path: Path) -> None:
    config = base() | {"model": base()["model"] | {"objective": {"type": "final_exit"}}}
    taught = Variant("taught", config | {"data_loader": {"batch_size": 2}}, "taught", teacher="teacher")
    trainings = Trainings([Variant("teacher", config, "teacher"), taught], tmp_path, seeds=2)
    teacher, run = trainings.of["teacher"], TrainingRun(trainings.of["taught"], 2)
    assert run.training.config["model"]["objective"]["teacher"] == teacher.key
    assert run.config["model"]["objective"]["teacher"] == str(teacher.directory / "seed_2" / "model.tar.gz")
    assert Launcher().train(run) == f"{teacher.directory.name}, seed 2, its teacher, is not trained"


def test_a_student_follows_its_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = base() | {"model": base()["model"] | {"objective": {"type": "final_exit"}}}
    other = config | {"data_loader": {"batch_size": 2}}
    variants = [Variant("taught", other, "taught", teacher="teacher"), Variant("alone", other, "alone")]
    trainings = Trainings([Variant("teacher", config, "teacher"), *variants], tmp_path, seeds=2)
    started: list[str] = []

    def execute(self: Launcher, job: Job, log_path: Path) -> int:
        started.append(name := f"{job.run.training.variants[0].name} {job.run.seed}")
        log_path.write_text("error: no memory")
        if name == "teacher 2":
            return 1
        job.run.serialization_dir.mkdir()
        job.run.archive_path.touch()
        job.run.record_path.write_text("{}")
        return 0

    monkeypatch.setattr(Launcher, "execute", execute)
    errors = {str(run).partition("-")[0] + str(run)[-2:]: error for run, error in train_all([trainings], Launcher())}
    # A student's place in the queue comes before those that are listed after it.
    assert started == ["teacher 1", "teacher 2", "taught 1", "alone 1", "alone 2"]
    failed = {name: str(error) for name, error in errors.items() if error is not None}
    assert failed["teacher 2"].startswith("no memory (exit status 1") and "its teacher" in failed["taught 2"]
    assert set(failed) == {"teacher 2", "taught 2"}


def test_a_diff_shows_a_block_whose_type_changed_as_a_whole() -> None:
    changed = configs(
        {"a": {"model": {"exit_policy": {"weights": {"type": "cost", "scale": 0.2}}}, "trainer.num_epochs": 1}}
    )
    found = differences(base(), changed["a"])
    assert in_one_line(found) == "exit_policy.weights={type: cost, scale: 0.2}; trainer.num_epochs=1"
    assert flat(found) == {
        "model.exit_policy.weights.type": "cost", "model.exit_policy.weights.scale": 0.2, "trainer.num_epochs": 1,
    }  # fmt: skip
    without = base()
    del without["trainer"]["num_epochs"]
    assert in_one_line(differences(base(), without)) == "-trainer.num_epochs"
    assert in_one_line(differences(base(), base())) == "nothing"


def result(seed: int, accuracy: float, speed: float = 2.0, score: float | None = None) -> dict[str, Any]:
    return {
        "seed": seed, "metrics": {"accuracy": accuracy}, "final_metrics": {"accuracy": 0.9}, "main_metric": "accuracy",
        "samples": 10, "layer_speedup": speed, "average_exit": 3.0, "average_layer": 3.0, "judged_on": "validation",
        "calibrated_on": "train[holdout]", "intervals": {}, "policy": {"type": "final"}, "warnings": ["few samples"],
        "curve": Curve(np.array([accuracy, accuracy - 0.1]), np.array([1.0, 3.0]), [None, None]),
        "training_seconds": 10.0 * seed, "parameters": 2_000_000, "exit_parameters": 10_000, "validation_score": score,
    }  # fmt: skip


def rows_of(document: Any, **accuracies: list[float]) -> list[Row]:
    rows = []
    for variant in read_variants(base(), document):
        row = Row(variant, differences(base(), variant.config), "trainings/x")
        values = accuracies.get(variant.family, [0.8])
        row.results = [result(seed, value) for seed, value in enumerate(values, 1)]
        rows.append(row)
    return rows


def test_spread_is_median_smallest_and_largest(tmp_path: Path) -> None:
    rows = rows_of({"a|b": {"trainer.num_epochs": 1}}, **{"a|b": [0.7, 0.9, 0.71]})
    spread = rows[1].spread("accuracy", "metrics")
    assert spread is not None and (spread.value, spread.bounds) == (0.71, (0.7, 0.9))
    compare_with_base(rows)
    table = ablation_table(rows, "title")
    line = table.cells()[1]
    assert line[2] == "71.00 [70.00, 90.00]" and line[4] == "2.00x" and len(line) == len(table.columns)
    curve = rows[1].curve()
    assert curve is not None and curve.at(3.0) == pytest.approx(0.61) and curve.at(1.0) == pytest.approx(0.71)
    text = markdown(table)
    assert "| a\\|b | trainer.num_epochs=1 |" in text and "train[holdout]" in text and "Median over 3 seeds" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    write_csv(tmp_path / "t.csv", [csv_record(row) for row in rows])
    head, first, second = (tmp_path / "t.csv").read_text().splitlines()
    assert head.startswith("name,diff,training,seeds,error") and "accuracy,accuracy_min,accuracy_max" in head
    assert second.startswith("a|b,trainer.num_epochs=1,trainings/x,3,")
    json.dumps(rows[1].to_json(), default=float)


def test_a_failed_variant_has_a_line_of_the_same_length() -> None:
    rows = rows_of({"a": {"trainer.num_epochs": 1}})
    rows[1].results, rows[1].errors = [], ["seed 1: out of memory"]
    compare_with_base(rows)
    table = ablation_table(rows, "t")
    first, second = table.cells()
    assert len(first) == len(second) == len(table.columns) and second[2] == "failed" and first[2] == "80.00"
    assert "a: error: seed 1: out of memory" in notes(rows)
    assert notes(rows)[-1] == "warning: base, seed 1: few samples"
    for row in rows:
        row.results = []
    assert [row[2] for row in ablation_table(rows, "t").cells()] == ["failed", "failed"]


def test_plain_networks_are_rows_and_the_deepest_is_the_reference() -> None:
    document = {"plain": [3, 9], "longer": {"plain": 3, "trainer.num_epochs": 8}}
    rows = rows_of(document, base=[0.9, 0.8], plain=[0.7, 0.6], longer=[0.8, 0.7])
    assert [row.name for row in rows] == ["base", "plain 3", "plain 9", "longer 3"]
    assert [row.variant.plain for row in rows] == [None, 3, 9, 3]
    encoder = rows[1].variant.config["model"]["encoder"]
    assert encoder["backbone"]["num_layers"] == 3 and encoder["exit_layers"] == [3]
    assert rows[3].variant.config["trainer"]["num_epochs"] == 8
    for row, depth in zip(rows, (6, 3, 9, 3), strict=True):
        for found in row.results:
            found |= {"depth": depth, "layer_speedup": 1.5 if row is rows[0] else 1.0}
    assert reference_of(rows[:2]) is rows[0], "a network of fewer layers is none"
    compare_with_base(rows)
    assert [row.spread("layer_speedup_over_base").value for row in rows] == [2.25, 3, 1, 3]  # type: ignore[union-attr]
    assert rows[2].difference is None and rows[0].difference is not None
    assert rows[0].difference.difference == pytest.approx(0.2)
    table = ablation_table(rows, "t")
    assert table.cells()[1][:2] == ["plain 3", "plain, 3 layers"] and "against plain 9" in table.heads
    if plots_available():
        axes = trade_off_figure(rows, [], "t").axes[0]
        assert any(line.get_xdata()[0] == 1 and line.get_xdata()[-1] == 3 for line in axes.get_lines()[1:])


def test_a_smaller_network_is_counted_against_the_base() -> None:
    rows = rows_of(
        {"three layers": {"trainer.num_epochs": 1}}, base=[0.9, 0.8, 0.91], **{"three layers": [0.7, 0.75, 0.7]}
    )
    for row, depth, speed in ((rows[0], 6, 1.5), (rows[1], 3, 1.0)):
        for found in row.results:
            found |= {"depth": depth, "layer_speedup": speed}
    compare_with_base(rows)
    assert rows[0].spread("layer_speedup_over_base").value == 1.5  # type: ignore[union-attr]
    assert rows[1].spread("layer_speedup_over_base").value == 2.0  # type: ignore[union-attr]
    difference = rows[1].difference
    assert difference is not None and difference.difference == pytest.approx(-0.1533, abs=1e-3)
    assert difference.pairs == 3 and difference.test == "paired_t"
    right = np.array([True] * 8 + [False] * 2)
    for row, given in zip(rows, (right, ~right)):
        row.results = [row.results[0] | {"right": given}]
    compare_with_base(rows)
    rows[0].results[0]["intervals"] = {"accuracy": (0.5, 0.95)}
    assert ablation_table(rows, "t").cells()[0][2] == "90.00 [50.00, 95.00]"
    assert rows[1].difference is not None and rows[1].difference.test == "mcnemar"
    assert rows[1].difference.difference == pytest.approx(-0.6) and "right" not in rows[1].to_json()["seeds"][0]


def test_the_best_of_a_grid_is_chosen_on_validation_data() -> None:
    rows = rows_of({"g": {"grid": {"data_loader.batch_size": [8, 16, 32]}}, "other": {"trainer.num_epochs": 1}})
    for row, score in zip(rows[1:4], [0.5, 0.7, 0.6]):
        row.results = [result(1, 0.9 - score, score=score)]
    rows[1].errors = ["seed 2: lost"]

    def never(row: Row) -> list[float]:
        raise AssertionError("scores differ, so nothing else is asked")

    kept = keep_best(rows, never)
    assert [row.name for row in kept] == ["base", "g[batch_size=16]", "other"]
    assert [entry["validation_score"] for entry in kept[1].settings] == [0.5, 0.7, 0.6]
    assert kept[1].errors == ["g[batch_size=8]: seed 2: lost"]


def test_settings_of_one_training_are_told_apart_by_early_exit_on_validation_data() -> None:
    rows = rows_of(
        {"g": {"model.exit_policy": {"type": "patience"}, "grid": {"model.exit_policy.patience": [1, 2, 3]}}}
    )
    for row in rows[1:]:
        row.results = [result(1, 0.5, score=0.7)]
    early = {1: [0.6, 0.6], 2: [0.9, 0.9], 3: [0.9, 0.9]}
    kept = keep_best(rows, lambda row: early[row.variant.setting["model.exit_policy.patience"]])
    assert kept[1].name == "g[patience=2]"


def test_a_grid_of_which_all_failed_keeps_its_errors() -> None:
    rows = rows_of({"g": {"grid": {"data_loader.batch_size": [8, 32]}}})
    for row in rows[1:]:
        row.results, row.errors = [], ["seed 1: no"]
    kept = keep_best(rows, lambda row: [])
    assert len(kept) == 2 and kept[1].errors == ["seed 1: no", "g[batch_size=32]: seed 1: no"]


def test_sweeps_are_found_whatever_the_variants_are_called() -> None:
    rows = rows_of(
        {
            "low": {"trainer.optimizer.lr": 1e-5},
            "high": {"trainer.optimizer.lr": 1e-4},
            "s": {"grid": {"data_loader.batch_size": [8, 32], "trainer.num_epochs": [1, 2, 4]}, "select": "all"},
            "once": {"model": {"exit_policy": {"weights": {"type": "cost", "scale": 0.2}}}},
        }
    )
    sweeps = find_sweeps(rows)
    assert {(sweep.key, sweep.name): sweep.values for sweep in sweeps} == {
        ("trainer.optimizer.lr", "low, high"): [1e-5, 3e-5, 1e-4],
        ("trainer.num_epochs", "data_loader.batch_size=8"): [1, 2, 4],
        ("trainer.num_epochs", "data_loader.batch_size=32"): [1, 2, 4],
    }
    assert [row.name for row in sweeps[0].rows] == ["low", "base", "high"]


def test_the_last_error_of_this_attempt_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("error: earlier\n")
    start = log.stat().st_size
    with open(log, "a") as file:
        file.write("reading\nerror: trainer.x: found 1\nbye\n")
    assert error_line(log, start) == "trainer.x: found 1"
    log.write_text("Traceback\nValueError: broken\n")
    assert error_line(log) == "ValueError: broken"


def test_a_variant_without_results_counts_as_no_sweep() -> None:
    rows = [Row(Variant(str(n), {"a": n}, str(n)), differences({"a": 9}, {"a": n}), "") for n in range(4)]
    assert find_sweeps(rows) == []


def test_every_training_gets_a_gpu_and_gives_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(devices=["0", "1"])
    seen: list[str] = []
    job = Job(TrainingRun(Training("key", tmp_path, {}), 1), no_steps, 0.0)

    def execute(job: Job, log_path: Path, environment: dict[str, str]) -> int:
        seen.append(environment["CUDA_VISIBLE_DEVICES"])
        if len(seen) == 1:  # while the first one runs
            launcher.execute(job, log_path)
        return 0

    monkeypatch.setattr(launcher, "_execute", execute)
    launcher.execute(job, tmp_path / "log")
    launcher.execute(job, tmp_path / "log")
    assert seen == ["0", "1", "1"] and launcher.jobs == 2


def test_a_training_process_ends_by_the_launchers_signal_and_not_by_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches it, too, and the launcher's SIGTERM after it would interrupt the archiving of the best epoch."""

    def run_job_that_gets(number: signal.Signals) -> None:
        job = io.BytesIO(pickle.dumps(functools.partial(signal.raise_signal, number)))
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=job))
        with sigterm_raises():
            RunJob("run-job").run(Namespace())

    before = signal.getsignal(signal.SIGINT)
    try:
        run_job_that_gets(signal.SIGINT)
        with pytest.raises(SigTermReceived):
            run_job_that_gets(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
