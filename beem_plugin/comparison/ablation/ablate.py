"""`allennlp ablate`: trains what has to be trained, judges every variant, and writes one table."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import BeemError, ConfigurationError, check_least
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.params import evaluate_document, load_config_dict
from beem_plugin.comparison.ablation.difference import differences
from beem_plugin.comparison.ablation.plots import write_plots
from beem_plugin.comparison.ablation.rows import Row, compare_with_base, find_sweeps, keep_best, reference_of
from beem_plugin.comparison.ablation.table import ablation_table, csv_record, markdown
from beem_plugin.comparison.ablation.variant_files import read_variants
from beem_plugin.comparison.trainings.runs import file_name, hash_of
from beem_plugin.comparison.trainings.trained import TrainedRun, judge
from beem_plugin.comparison.trainings.trainings import Trainings, check_directory, say
from beem_plugin.comparison.trainings.variants import Variant, check_variants
from beem_plugin.rendering.tables import write_csv


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
        row = rows[variant.name]
        try:
            result = {**judge(variant, trained, with_seconds=with_seconds), "seed": seed, **trained.figures}
        except BeemError as error:
            row.errors.append(f"seed {seed}: {error}")
            continue
        path = directory / "policies" / policy_folder(variant.name, rows) / f"seed_{seed}.json"
        write_json(path, result["policy"])
        row.results.append({**result, "policy_file": str(path)})
    trained.release()


def policy_folder(name: str, names: Iterable[str]) -> str:
    """The variant's name as a folder's, with a hash where another variant's would be the same."""
    folder, same = file_name(name), [other for other in names if file_name(other) == file_name(name)]
    return folder if len(same) == 1 else f"{folder}-{hash_of({'name': name}, 6)}"


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
    sweeps = find_sweeps(rows)
    plots = write_plots(rows, sweeps, directory, title)
    content = {**given, "rows": [row.to_json() for row in rows]}
    content["sweeps"] = [
        {"key": s.key, "name": s.name, "values": s.values, "rows": [row.name for row in s.rows]} for s in sweeps
    ]
    reference = reference_of(rows)
    content["reference"] = None if reference is None else reference.name
    # Through text, so that no number of numpy's or torch's is left in it.
    write_json(directory / "ablation.json", json.loads(json.dumps(content, default=float)))
    write_csv(directory / "ablation.csv", [csv_record(row) for row in content["rows"]])
    table = ablation_table(rows, title)
    with atomic_write(directory / "ablation.md") as file:
        file.write(markdown(table, plots))
    table.write(directory / "ablation.tex")
    table.print(220)
    judged = [row for row in rows if row.results]
    if judged:
        say(ship_command(max(judged, key=lambda row: row.results[0]["metrics"][row.main_metric]), directory))
    names = ("ablation.md", "ablation.csv", "ablation.json", "ablation.tex", *plots)
    say("wrote " + ", ".join(str(directory / name) for name in names))


def ship_command(row: Row, directory: Path) -> str:
    """How a row's policy is put into the archive of its training, which itself has no early exits."""
    result = row.results[0]
    archive = directory / row.training / f"seed_{result['seed']}" / "model.tar.gz"
    return (
        "trainings run at full depth; to use a row of the table, put its policy into the archive, as for "
        f"{row.name!r}: allennlp calibrate {archive} --trace {result['trace_file']} --policy {result['policy_file']} "
        "--output-archive NEW.tar.gz"
    )
