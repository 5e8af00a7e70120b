"""`allennlp ablate`: trains what has to be trained, judges every variant, and writes one table."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import BeemError, ConfigurationError, check_least
from beem_plugin.common.files import write_json
from beem_plugin.common.params import evaluate_document, load_config_dict
from beem_plugin.comparison.ablation.rows import Row, compare_with_base, find_sweeps, keep_best, reference_of
from beem_plugin.comparison.ablation.table import ablation_table, csv_record, markdown, write_plots
from beem_plugin.comparison.ablation.variant_files import differences, read_variants
from beem_plugin.comparison.trainings.runs import file_name, hash_of
from beem_plugin.comparison.trainings.trained import TrainedRun, judge
from beem_plugin.comparison.trainings.trainings import Trainings, check_directory, say
from beem_plugin.comparison.trainings.variants import Variant, check_variants
from beem_plugin.rendering.tables import write_all


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
    rows = ablate(Trainings(variants, directory, args.seeds), args.jobs, args.include_package, args.measure)
    title = f"{Path(args.base).stem}: {Path(args.variants).stem}"
    write_report(rows, directory, title, {"base": args.base, "variants": args.variants, "seeds": args.seeds})
    return 1 if any(row.errors for row in rows) else 0


def ablate(
    trainings: Trainings,
    jobs: int = 1,
    include_packages: Sequence[str] = (),
    with_seconds: bool = False,
    devices: Sequence[str] = (),
) -> list[Row]:
    """
    Trains and judges the variants of `trainings`, the base first; for the parameters see `Trainings.train`.
    `with_seconds` also times each variant on its engine. The rows are in the variants' order, of a grid with `select`
    "best" the best setting only.
    """
    base, directory = trainings.variants[0].config, trainings.folder
    rows = {}
    for variant in trainings.variants:
        training = str(trainings.of[variant.name].directory.relative_to(directory))
        rows[variant.name] = Row(variant, differences(base, variant.config), training)
    for run, error in trainings.train(jobs, include_packages, devices):
        if error is None:
            judge_all(TrainedRun(run), rows, directory, with_seconds)
            continue
        for variant in run.training.variants:
            rows[variant.name].errors.append(f"seed {run.seed}: {error}")
    for row in rows.values():
        row.results.sort(key=lambda result: result["seed"])
    kept = keep_best(list(rows.values()), lambda row: on_validation(row.variant, trainings.trained(row.name)))
    compare_with_base(kept)
    return kept


def judge_all(trained: TrainedRun, rows: dict[str, Row], directory: Path, with_seconds: bool) -> None:
    """Judges all variants of a finished training; one that cannot be judged gets an error."""
    seed, variants = trained.run.seed, trained.run.training.variants
    say(f"judging {len(variants)} variants of {trained.run}")
    for variant in variants:
        row, folder = rows[variant.name], file_name(variant.name)
        try:
            result = {**judge(variant, trained, with_seconds=with_seconds), "seed": seed, **trained.figures}
        except BeemError as error:
            row.errors.append(f"seed {seed}: {error}")
            continue
        if sum(file_name(name) == folder for name in rows) > 1:
            folder += f"-{hash_of({'name': variant.name}, 6)}"
        path = directory / "policies" / folder / f"seed_{seed}.json"
        write_json(path, result["policy"])
        row.results.append({**result, "policy_file": str(path)})
    trained.release()


def on_validation(variant: Variant, runs: Sequence[TrainedRun]) -> list[float]:
    """The variant's metric with early exit on the validation data, one number a seed."""
    source = variant.config.get("validation_data_path")
    values = []
    for run in runs if source else ():
        result = judge(variant, run, source)
        values.append(result["metrics"][result["main_metric"]])
        run.release()
    return values


def write_report(rows: Sequence[Row], directory: Path, title: str, given: dict[str, Any]) -> None:
    """`ablation.json`, `.csv`, `.md`, `.tex`, the plots, and the table on the terminal."""
    sweeps, table, reference = find_sweeps(rows), ablation_table(rows, title), reference_of(rows)
    plots = write_plots(rows, sweeps, directory, title)
    content = {**given, "rows": [row.to_json() for row in rows]}
    content["sweeps"] = [
        {"key": s.key, "name": s.name, "values": s.values, "rows": [row.name for row in s.rows]} for s in sweeps
    ]
    content["reference"] = None if reference is None else reference.name
    contents = {".md": markdown(table, plots), ".csv": [csv_record(row) for row in rows]}
    written = write_all(directory / "ablation", contents | {".json": content, ".tex": table.to_latex()})
    table.print(220)
    judged = [row for row in rows if row.results]
    if judged:
        say(ship_command(max(judged, key=lambda row: row.results[0]["metrics"][row.main_metric]), directory))
    say("wrote " + ", ".join(map(str, [*written, *(directory / name for name in plots)])))


def ship_command(row: Row, directory: Path) -> str:
    """How a row's policy is put into the archive of its training, which itself has no early exits."""
    result = row.results[0]
    archive = directory / row.training / f"seed_{result['seed']}" / "model.tar.gz"
    return (
        "trainings run at full depth; to use a row of the table, put its policy into the archive, as for "
        f"{row.name!r}: allennlp calibrate {archive} --trace {result['trace_file']} --policy {result['policy_file']} "
        "--output-archive NEW.tar.gz"
    )
