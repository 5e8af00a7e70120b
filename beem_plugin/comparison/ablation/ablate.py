"""`allennlp ablate`: trains what has to be trained, judges every variant, and writes one table."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import BeemError, ConfigurationError
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.params import evaluate_document, load_config_dict
from beem_plugin.comparison.ablation.checks import check_variants
from beem_plugin.comparison.ablation.difference import differences
from beem_plugin.comparison.ablation.judging import TrainedRun, judge
from beem_plugin.comparison.ablation.launcher import Launcher
from beem_plugin.comparison.ablation.plots import write_plots
from beem_plugin.comparison.ablation.rows import Row, compare_with_base, find_sweeps
from beem_plugin.comparison.ablation.selection import keep_best
from beem_plugin.comparison.ablation.table import ablation_table, csv_record, markdown
from beem_plugin.comparison.ablation.trainings import Training, TrainingRun, file_name, hash_of, plan, remember
from beem_plugin.comparison.ablation.variants import Variant, read_variants
from beem_plugin.rendering.tables import write_csv

logger = logging.getLogger(__name__)

STATE_NAME = "variants.json"


def ablate_from_args(args: argparse.Namespace) -> int:
    """Runs the command; `args` as `commands/ablate.py` parses them. 1 if anything failed."""
    for name in ("seeds", "jobs"):
        if getattr(args, name) < 1:
            raise ConfigurationError(f"--{name}: found {getattr(args, name)}, allowed: 1 or more")
    directory = Path(args.serialization_dir)
    base = load_config_dict(args.base, args.overrides)
    try:
        variants = read_variants(base, evaluate_document(args.variants))
        check_variants(variants)
    except ConfigurationError as error:
        message = str(error)
        raise ConfigurationError(message if args.variants in message else f"{args.variants}: {message}") from error
    check_directory(directory, args.recover, args.force)
    if args.force:
        shutil.rmtree(directory, ignore_errors=True)
    rows = ablate(variants, directory, args.seeds, args.jobs, args.include_package, args.measure)
    title = f"{Path(args.base).stem}: {Path(args.variants).stem}"
    write_report(rows, directory, title, {"base": args.base, "variants": args.variants, "seeds": args.seeds})
    return 1 if any(row.errors for row in rows) else 0


def check_directory(directory: Path, recover: bool, force: bool) -> None:
    """Raises a `ConfigurationError` unless an ablation may use the directory. Changes nothing."""
    if recover and force:
        raise ConfigurationError("--recover and --force contradict each other: give one of them")
    if directory.exists() and not directory.is_dir():
        raise ConfigurationError(f"serialization directory {directory}: it is a file")
    is_ablation = (directory / STATE_NAME).is_file()
    if recover and not is_ablation:
        raise ConfigurationError(f"--recover: there is no ablation in {directory} (no {STATE_NAME} is in it)")
    if not is_ablation and directory.is_dir() and any(directory.iterdir()):
        raise ConfigurationError(f"serialization directory {directory} holds something else (no {STATE_NAME} is in it)")


def ablate(
    variants: Sequence[Variant],
    directory: Path,
    seeds: int = 1,
    jobs: int = 1,
    include_packages: Sequence[str] = (),
    with_seconds: bool = False,
) -> list[Row]:
    """
    Trains and judges the variants, the base first, with `jobs` trainings at a time; what is in the directory from an
    earlier call is kept. `with_seconds` also times each variant on its engine.

    # Returns

    `list[Row]`
        In the variants' order; of a grid with `select` "best" the best setting only.
    """
    trainings = plan(variants, directory / "trainings")
    remember(trainings, directory / STATE_NAME)
    runs = [training.run(seed) for training in trainings for seed in range(1, seeds + 1)]
    done = sum(run.is_finished for run in runs)
    say(f"{len(variants)} variants, {len(trainings)} trainings, {seeds} seeds; {done} of {len(runs)} done")
    owners = {
        run.serialization_dir: training for training in trainings for run in map(training.run, range(1, seeds + 1))
    }
    base = variants[0].config
    rows = {
        variant.name: Row(variant, differences(base, variant.config), str(training.directory.relative_to(directory)))
        for training in trainings
        for variant in training.variants
    }
    trained: dict[Path, TrainedRun] = {}
    for count, (run, error) in enumerate(Launcher(include_packages).run(runs, jobs, say), 1):
        training = owners[run.serialization_dir]
        say(f"[{count}/{len(runs)}] {training.directory.name}, seed {run.seed}: {error or 'trained'}")
        if error is not None:
            for variant in training.variants:
                rows[variant.name].errors.append(f"seed {run.seed}: {error}")
            continue
        say(f"judging {len(training.variants)} variants of {training.directory.name}, seed {run.seed}")
        trained[run.serialization_dir] = judge_all(training, run, rows, directory, with_seconds)
    for row in rows.values():
        row.results.sort(key=lambda result: result["seed"])
    ordered = [rows[variant.name] for variant in variants]
    kept = keep_best(ordered, validation_judge(trainings, trained, seeds))
    compare_with_base(kept)
    return kept


def judge_all(
    training: Training, run: TrainingRun, rows: dict[str, Row], directory: Path, with_seconds: bool
) -> TrainedRun:
    """Judges all variants of a finished training; one that cannot be judged gets an error."""
    trained = TrainedRun(run)
    for variant in training.variants:
        row = rows[variant.name]
        try:
            result = judge(variant.config, trained, with_seconds=with_seconds)
            result.update(seed=run.seed, training_seconds=trained.seconds, **trained.parameters)
        except BeemError as error:
            row.errors.append(f"seed {run.seed}: {error}")
            continue
        result["validation_score"] = trained.validation_score
        path = directory / "policies" / policy_folder(variant.name, rows) / f"seed_{run.seed}.json"
        write_json(path, result["policy"])
        result["policy_file"] = str(path)
        row.results.append(result)
    trained.release()
    return trained


def policy_folder(name: str, names: Iterable[str]) -> str:
    """The variant's name as a folder's, with a hash where another variant's would be the same."""
    folder, same = file_name(name), [other for other in names if file_name(other) == file_name(name)]
    return folder if len(same) == 1 else f"{folder}-{hash_of({'name': name})[:6]}"


def validation_judge(
    trainings: Sequence[Training], trained: dict[Path, TrainedRun], seeds: int
) -> Callable[[Row], list[float]]:
    """A function that gives a row's metric with early exit on the validation data, one number a seed."""
    training_of = {variant.name: training for training in trainings for variant in training.variants}

    def early_exit_on_validation(row: Row) -> list[float]:
        config = row.variant.config
        if not config.get("validation_data_path"):
            return []
        values = []
        for seed in range(1, seeds + 1):
            run = trained.get(training_of[row.name].run(seed).serialization_dir)
            if run is not None:
                result = judge(config, run, config["validation_data_path"])
                values.append(result["metrics"][result["main_metric"]])
                run.release()
        return values

    return early_exit_on_validation


def write_report(rows: Sequence[Row], directory: Path, title: str, given: dict[str, Any]) -> None:
    """`ablation.json`, `.csv`, `.md`, the plots, and the table on the terminal."""
    sweeps = find_sweeps(rows)
    plots = write_plots(rows, sweeps, directory, title)
    content = {**given, "rows": [row.to_json() for row in rows]}
    content["sweeps"] = [
        {"key": s.key, "name": s.name, "values": s.values, "rows": [row.name for row in s.rows]} for s in sweeps
    ]
    # Through text, so that no number of numpy's or torch's is left in it.
    write_json(directory / "ablation.json", json.loads(json.dumps(content, default=float)))
    write_csv(directory / "ablation.csv", [csv_record(row) for row in rows])
    table = ablation_table(rows, title)
    with atomic_write(directory / "ablation.md") as file:
        file.write(markdown(table, plots))
    table.write(directory / "ablation.tex")
    table.print(220)
    judged = [row for row in rows if row.results]
    if judged:
        say(ship_command(max(judged, key=lambda row: row.results[0]["metrics"][row.main_metric]), directory))
    say(
        "wrote " + ", ".join(str(directory / name) for name in ("ablation.md", "ablation.csv", "ablation.json", *plots))
    )


def ship_command(row: Row, directory: Path) -> str:
    """How a row's policy is put into the archive of its training, which itself has no early exits."""
    result = row.results[0]
    archive = directory / row.training / f"seed_{result['seed']}" / "model.tar.gz"
    return (
        "trainings run at full depth; to use a row of the table, put its policy into the archive, as for "
        f"{row.name!r}: allennlp calibrate {archive} --trace {result['trace_file']} --policy {result['policy_file']} "
        "--output-archive NEW.tar.gz"
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
