"""`allennlp ablate`: trains what has to be trained, judges every variant, and writes one table."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import BeemError, ConfigurationError, check_least
from beem_plugin.common.files import write_json
from beem_plugin.common.metrics import MAIN_SCORE
from beem_plugin.common.params import diff_configs, evaluate_document, load_config_dict
from beem_plugin.comparison.ablation.rows import Row, compare_with_base, find_sweeps, keep_best, reference_of
from beem_plugin.comparison.ablation.table import ablation_table, csv_record, figures_of
from beem_plugin.comparison.ablation.variant_files import read_variants
from beem_plugin.comparison.report import calibrate_command, write_report
from beem_plugin.comparison.result import build
from beem_plugin.comparison.trainings.judging import judge, judged, judging_steps
from beem_plugin.comparison.trainings.launcher import Launcher
from beem_plugin.comparison.trainings.runs import file_name, hash_of
from beem_plugin.comparison.trainings.trained import TrainedRun
from beem_plugin.comparison.trainings.trainings import Trainings, check_directory, say, train_all
from beem_plugin.comparison.trainings.variants import Variant, check_variants
from beem_plugin.rendering.plots import plots_available


def ablate_from_args(args: argparse.Namespace) -> int:
    """Runs the command; `args` as `commands/ablate.py` parses them. 1 if anything failed."""
    check_least(args, 1, "seeds", "jobs")
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
    trainings = Trainings(variants, directory, args.seeds)
    (rows,) = ablate([trainings], Launcher(args.jobs, args.include_package), args.measure)
    title = f"{Path(args.base).stem}: {Path(args.variants).stem}"
    report(rows, directory, title, {"base": args.base, "variants": args.variants, "seeds": args.seeds})
    return 1 if any(row.errors for row in rows) else 0


def ablate(plans: Sequence[Trainings], launcher: Launcher, with_seconds: bool = False) -> list[list[Row]]:
    """
    Trains and judges the variants of each of `plans`, its base first; their trainings share one queue. `with_seconds`
    also times each variant on its engine, once nothing else runs. The rows are in the variants' order, of a grid with
    `select` "best" the best setting only.
    """
    rows = [rows_of(plan) for plan in plans]
    owners = {run.serialization_dir: number for number, plan in enumerate(plans) for run in plan.runs}
    for run, error in train_all(plans, launcher, judging_steps):
        number = owners[run.serialization_dir]
        if error is None:
            judge_all(TrainedRun(run), rows[number], plans[number].folder)
            continue
        for variant in run.training.variants:
            rows[number][variant.name].errors.append(f"seed {run.seed}: {error}")
    return [finished(plan, list(own.values()), with_seconds) for plan, own in zip(plans, rows, strict=True)]


def rows_of(trainings: Trainings) -> dict[str, Row]:
    """The rows by name, without results."""
    base, rows = trainings.variants[0].config, {}
    for variant in trainings.variants:
        training = str(trainings.of[variant.name].directory.relative_to(trainings.folder))
        rows[variant.name] = Row(variant, diff_configs(base, variant.config, whole_blocks=True), training)
    return rows


def finished(trainings: Trainings, rows: Sequence[Row], with_seconds: bool) -> list[Row]:
    """The judged rows that are kept, compared with the base."""
    for row in rows:
        row.results.sort(key=lambda result: result["seed"])
    kept = keep_best(rows, lambda row: on_validation(row.variant, trainings.trained(row.name)))
    for row in kept if with_seconds else ():
        add_seconds(row, trainings)
    compare_with_base(kept)
    return kept


def judge_all(trained: TrainedRun, rows: dict[str, Row], directory: Path) -> None:
    """Judges all variants of a finished training; one that cannot be judged gets an error."""
    seed = trained.run.seed
    for variant in trained.run.training.variants:
        row, folder = rows[variant.name], file_name(variant.name)
        try:
            result = {**judge(variant, trained), "seed": seed, **trained.figures}
        except BeemError as error:
            row.errors.append(f"seed {seed}: {error}")
            continue
        if sum(file_name(name) == folder for name in rows) > 1:
            folder += f"-{hash_of({'name': variant.name}, 6)}"
        path = directory / "policies" / folder / f"seed_{seed}.json"
        write_json(path, result["policy"])
        row.results.append({**result, "policy_file": str(path)})


def on_validation(variant: Variant, runs: Sequence[TrainedRun]) -> list[float]:
    """The variant's metric with early exit on the validation data, one number a seed."""
    source = variant.config.get("validation_data_path")
    found = [judged(variant, run, source) for run in runs] if source else []
    return [one.result.metrics[MAIN_SCORE[one.judge.trace.metric]] for one in found]


def add_seconds(row: Row, trainings: Trainings) -> None:
    """Adds to each result the seconds of the variant's engine on the data that it is judged on."""
    say(f"measuring {row.name}")
    runs = {trained.run.seed: trained for trained in trainings.trained(row.name)}
    for result in row.results:
        trained = runs[result["seed"]]
        policy = build(result["policy"], trained.archive.model.exit_network)
        result |= trained.measured_seconds(result["judged_on"], policy, row.variant.config)


def report(rows: Sequence[Row], directory: Path, title: str, given: dict[str, Any]) -> None:
    """`ablation.json`, `.csv`, `.md`, `.tex`, the plots, and the table on the terminal."""
    sweeps, reference = find_sweeps(rows), reference_of(rows)
    content = {**given, "rows": [row.to_json() for row in rows]}
    content["sweeps"] = [
        {"key": s.key, "name": s.name, "values": s.values, "rows": [row.name for row in s.rows]} for s in sweeps
    ]
    content["reference"] = None if reference is None else reference.name
    judged = [row for row in rows if row.results]
    figures = figures_of(judged, sweeps, title) if judged and plots_available() else {}
    lines = [csv_record(row) for row in rows]
    write_report(directory / "ablation", ablation_table(rows, title), content, lines, figures)
    if judged:
        say(ship_command(max(judged, key=lambda row: row.results[0]["metrics"][row.main_metric]), directory))


def ship_command(row: Row, directory: Path) -> str:
    """How a row's policy is put into the archive of its training, which itself has no early exits."""
    result = row.results[0]
    archive = directory / row.training / f"seed_{result['seed']}" / "model.tar.gz"
    return (
        "trainings run at full depth; to use a row of the table, put its policy into the archive, as for "
        f"{row.name!r}: {calibrate_command(archive, result['trace_file'], result['policy_file'])}"
    )
