"""`scripts/paper_tables`: the paper's tables and figures, each from one command."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.caption_metrics import check_metrics
from beem_plugin.common.errors import ConfigurationError, check_choice, check_least
from beem_plugin.comparison.ablation.ablate import ablate
from beem_plugin.comparison.paper import tables
from beem_plugin.comparison.paper.captions import PRESETS, caption_variants, decoder_depth, run_caption_table
from beem_plugin.comparison.paper.figures import figure_variants, run_figure
from beem_plugin.comparison.paper.methods import (
    CAPTION_METHODS,
    CAPTION_TABLE,
    FIGURES,
    LAYOUTS,
    METHODS,
    Choices,
    shown_encoder,
    variants_of,
)
from beem_plugin.comparison.trainings.launcher import Launcher
from beem_plugin.comparison.trainings.runs import file_name
from beem_plugin.comparison.trainings.trainings import Trainings, cost_table, say
from beem_plugin.dataset_readers.glue_tasks import HUB_NAME

SECONDS_A_LAYER = {"cpu": 4e-3, "gpu": 4e-5}
"""Of one sample in training: a layer of 768 with 40 tokens, one core or one H200."""
Plans = Mapping[tuple[str, str], Trainings]
"""By encoder and task."""


def run(args: argparse.Namespace) -> int:
    """Runs the script; 1 if a training failed."""
    check_least(args, 1, "seeds", "per_gpu", "jobs")
    check_least(args, 0, "gpus")
    overrides = json_object("--overrides", args.overrides), json_object("--task-overrides", args.task_overrides)
    choices = Choices(args.epochs, args.lr, args.batch_size, args.speedup, *overrides)
    devices = [str(gpu) for _ in range(args.per_gpu) for gpu in range(args.gpus)]
    launcher = Launcher(args.jobs, devices=devices)
    plans = caption_plans(args, choices) if args.table == CAPTION_TABLE else text_plans(args, choices)
    if args.dry_run:
        dry_run(plans, args, launcher.jobs)
        return 0
    if args.figure:
        say("wrote " + ", ".join(map(str, run_figure(plans, launcher, args.output / f"figure_{args.figure}"))))
        return 0
    if args.table == CAPTION_TABLE:
        (trainings,) = plans.values()
        table, lines = run_caption_table(trainings, launcher, args.metrics, args.spice_jars)
        settings = tables.settings_table((variant, None, None) for variant in trainings.variants)
    else:
        rows, layout = ablate(list(plans.values()), launcher), LAYOUTS[args.table]
        found = [tables.TaskRows(*cell, plan, own) for (cell, plan), own in zip(plans.items(), rows, strict=True)]
        lines = [line for one in found for line in one.lines()]
        table = tables.paper_table(layout, found, lines)
        table.notes = tables.notes(layout, found, args.seeds)
        cells = ((row.variant, one.task, shown_encoder(one.backbone)) for one in found for row in one.rows)
        settings = tables.settings_table(cells)
    tables.write_table(args.output / f"table_{args.table}", table, lines, settings)
    if args.table == "methods":
        tables.write_swept(lines, METHODS["beem-a"].row, args.output / "table_methods_swept")
        tables.export_traces(found, args.output / "traces")
    return int(any(note.startswith("error:") for note in table.notes))


def text_plans(args: argparse.Namespace, choices: Choices) -> Plans:
    """The methods of a table or a figure on its tasks, in OUTPUT/runs/ENCODER/TASK."""
    layout = FIGURES[args.figure] if args.figure else LAYOUTS[args.table]
    environment = list(filter(None, [os.environ.get("BEEM_BACKBONE")]))
    methods: Sequence[str] = args.methods or layout.methods
    for method in methods:
        check_choice("--methods", method, METHODS)
    if layout.relative and "final" not in methods:
        methods = ["final", *methods]  # what the others are compared with
    plans = {}
    for backbone in args.backbone or environment or layout.backbones:
        for task in args.tasks or layout.tasks:
            variants = variants_of(methods, task, backbone, tables.three_quarters(backbone), choices)
            if args.figure and not args.dry_run:  # they need no further trainings
                variants = figure_variants(args.figure, variants, tables.depth_of(backbone))
            folder = args.output / "runs" / file_name(shown_encoder(backbone)) / task
            plans[backbone, task] = Trainings(variants, folder, args.seeds)
    return plans


def caption_plans(args: argparse.Namespace, choices: Choices) -> Plans:
    """The methods of table 3 on its images, in OUTPUT/runs/SET."""
    methods = args.methods or list(CAPTION_METHODS)
    for method in methods:
        check_choice("--methods", method, CAPTION_METHODS)
    check_metrics(args.metrics, args.spice_jars)
    variants = caption_variants(args.set, {key: PRESETS.get(key, key) for key in methods}, choices)
    return {(args.set, args.set): Trainings(variants, args.output / "runs" / args.set, args.seeds)}


def dry_run(plans: Plans, args: argparse.Namespace, jobs: int) -> None:
    """Prints every training with its time, and what is downloaded: what is neither in a folder nor in a package."""
    is_text = args.table != CAPTION_TABLE
    configs = {encoder: plan.variants[0].config for (encoder, _), plan in plans.items()}
    depths = {name: tables.depth_of(name) if is_text else decoder_depth(config) for name, config in configs.items()}
    table = cost_table(plans, depths, SECONDS_A_LAYER["gpu" if args.gpus else "cpu"], jobs)
    models = [config["model"] for config in configs.values()]
    backbones = [(model.get("encoder") or model["decoder"])["backbone"] for model in models]
    names = [backbone.get(key) for backbone in backbones for key in ("model_name", "encoder", "decoder")]
    needed = [one for one in names if isinstance(one, str) and not (one.startswith("package:") or Path(one).is_dir())]
    if is_text and not os.environ.get("GLUE_DIR"):
        needed += [f"{HUB_NAME} ({task})" for _, task in plans]
    listed = ", ".join(dict.fromkeys(needed))
    table.notes.append(f"to be downloaded unless cached: {listed}" if needed else "nothing is downloaded")
    table.print(200)


def json_object(flag: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{flag}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{flag}: found {text}, allowed: a JSON object")
    return found
