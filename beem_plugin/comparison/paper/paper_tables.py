"""`scripts/paper_tables`: the paper's tables and figures, each from one command."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.caption_metrics import check_metrics
from beem_plugin.common.errors import ConfigurationError, check_choice, check_least
from beem_plugin.comparison.paper.captions import PRESETS, caption_variants, decoder_depth, run_caption_table
from beem_plugin.comparison.paper.figures import run_figure
from beem_plugin.comparison.paper.methods import (
    CAPTION_METHODS,
    CAPTION_TABLE,
    FIGURES,
    LAYOUTS,
    METHODS,
    Choices,
    shown_encoder,
)
from beem_plugin.comparison.paper.tables import (
    Plan,
    depth_of,
    export_traces,
    notes,
    paper_table,
    run_table,
    settings_table,
    write_swept,
    write_table,
)
from beem_plugin.comparison.trainings.launcher import Launcher
from beem_plugin.comparison.trainings.trainings import Trainings, cost_table, say
from beem_plugin.dataset_readers.glue_tasks import HUB_NAME

SECONDS_A_LAYER = {"cpu": 4e-3, "gpu": 4e-5}
"""Of one sample in training: a layer of 768 with 40 tokens, one core or one H200."""


def run(args: argparse.Namespace) -> int:
    """Runs the script; 1 if a training failed."""
    check_least(args, 1, "seeds", "per_gpu", "jobs")
    check_least(args, 0, "gpus")
    overrides = json_object("--overrides", args.overrides), json_object("--task-overrides", args.task_overrides)
    choices = Choices(args.epochs, args.lr, args.batch_size, args.speedup, *overrides)
    devices = [str(gpu) for _ in range(args.per_gpu) for gpu in range(args.gpus)]
    launcher = Launcher(args.jobs, devices=devices)
    if args.table == CAPTION_TABLE:
        return caption_table(args, choices, launcher)
    given = chosen_plan(args, choices)
    if args.dry_run:
        plans = {cell: given.trainings(*cell) for cell in given.cells()}
        return dry_run(plans, {one: depth_of(one) for one in given.backbones}, args, launcher.jobs, given.tasks)
    if args.figure:
        say("wrote " + ", ".join(map(str, run_figure(args.figure, given, launcher))))
        return 0
    layout = LAYOUTS[args.table]
    found = run_table(given, launcher)
    lines = [line for one in found for line in one.lines()]
    table = paper_table(layout, lines, given.backbones, given.methods)
    table.notes = notes(layout, found, args.seeds)
    variants = [(row.variant, one.task, shown_encoder(one.backbone)) for one in found for row in one.rows]
    write_table(args.output / f"table_{args.table}", table, lines, settings_table(variants))
    if args.table == "methods":
        write_swept(lines, METHODS["beem-a"].row, args.output / "table_methods_swept")
        export_traces(found, args.output / "traces")
    return int(any(row.errors for one in found for row in one.rows))


def chosen_plan(args: argparse.Namespace, choices: Choices) -> Plan:
    layout = FIGURES[args.figure] if args.figure else LAYOUTS[args.table]
    environment = list(filter(None, [os.environ.get("BEEM_BACKBONE")]))
    backbones: Sequence[str] = args.backbone or environment or layout.backbones
    methods: Sequence[str] = args.methods or layout.methods
    for method in methods:
        check_choice("--methods", method, METHODS)
    if layout.relative and "final" not in methods:
        methods = ["final", *methods]  # what the others are compared with
    return Plan(backbones, args.tasks or layout.tasks, methods, args.output, args.seeds, choices)


def caption_table(args: argparse.Namespace, choices: Choices, launcher: Launcher) -> int:
    methods = args.methods or list(CAPTION_METHODS)
    for method in methods:
        check_choice("--methods", method, CAPTION_METHODS)
    check_metrics(args.metrics, args.spice_jars)
    variants = caption_variants(args.set, {key: PRESETS.get(key, key) for key in methods}, choices)
    trainings = Trainings(variants, args.output / "runs" / args.set, args.seeds)
    if args.dry_run:
        depths = {args.set: decoder_depth(variants[0].config)}
        return dry_run({(args.set, args.set): trainings}, depths, args, launcher.jobs)
    table, lines = run_caption_table(trainings, launcher, args.metrics, args.spice_jars)
    settings = settings_table((variant, None, None) for variant in variants)
    write_table(args.output / f"table_{CAPTION_TABLE}", table, lines, settings)
    return int(any(note.startswith("error:") for note in table.notes))


def dry_run(
    plans: Mapping[tuple[str, str], Trainings],
    depths: Mapping[str, int],
    args: argparse.Namespace,
    jobs: int,
    tasks: Sequence[str] = (),
) -> int:
    """Prints every training with its time, and what is downloaded: what is neither in a folder nor in a package."""
    table = cost_table(plans, depths, SECONDS_A_LAYER["gpu" if args.gpus else "cpu"], jobs)
    variants = [plan.variants[0].config["model"] for plan in plans.values()]
    backbones = [(model.get("encoder") or model["decoder"])["backbone"] for model in variants]
    names = [backbone.get(key) for backbone in backbones for key in ("model_name", "encoder", "decoder")]
    needed = [one for one in names if isinstance(one, str) and not (one.startswith("package:") or Path(one).is_dir())]
    needed += [] if os.environ.get("GLUE_DIR") else [f"{HUB_NAME} ({task})" for task in tasks]
    listed = ", ".join(dict.fromkeys(needed))
    table.notes.append(f"to be downloaded unless cached: {listed}" if needed else "nothing is downloaded")
    table.print(200)
    return 0


def json_object(flag: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{flag}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{flag}: found {text}, allowed: a JSON object")
    return found
