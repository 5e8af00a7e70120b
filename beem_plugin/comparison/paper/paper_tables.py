"""`scripts/paper_tables`: the paper's tables and figures, each from one command."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.caption_metrics import check_metrics
from beem_plugin.common.errors import ConfigurationError, check_least, not_allowed
from beem_plugin.comparison.paper.captions import (
    caption_runs,
    caption_settings,
    caption_variants,
    run_caption_table,
)
from beem_plugin.comparison.paper.estimate import dry_run
from beem_plugin.comparison.paper.figures import run_figure
from beem_plugin.comparison.paper.layouts import CAPTION_METHODS, CAPTION_TABLE, FIGURES, LAYOUTS
from beem_plugin.comparison.paper.methods import METHODS, Choices
from beem_plugin.comparison.paper.runs import Plan, export_traces, run_table
from beem_plugin.comparison.paper.tables import notes, paper_table, records, settings_table, write_table


def paper_tables_from_args(args: argparse.Namespace) -> int:
    """Runs the script; 1 if a training failed."""
    check_least(args, 1, "seeds", "per_gpu", "jobs")
    check_least(args, 0, "gpus")
    choices = Choices(
        epochs=args.epochs,
        lr=args.lr,
        batch_size=args.batch_size,
        speedup=args.speedup,
        overrides=json_object("--overrides", args.overrides),
        task_overrides=json_object("--task-overrides", args.task_overrides),
    )
    devices = [str(gpu) for _ in range(args.per_gpu) for gpu in range(args.gpus)]
    jobs = len(devices) or args.jobs
    if args.table == CAPTION_TABLE:
        return caption_table(args, choices, jobs, devices)
    given = chosen_plan(args, choices)
    if args.dry_run:
        dry_run(given.runs(), jobs, args.gpus, given.backbones, given.tasks).print(200)
        return 0
    if args.figure:
        written = run_figure(args.figure, given, jobs, devices)
        say(written)
        return 0
    layout = LAYOUTS[args.table]
    found = run_table(given, jobs, devices)
    table = paper_table(layout, found, given.backbones, given.methods)
    table.notes = notes(layout, found, args.seeds)
    settings = settings_table(found, given.methods)
    lines = records(found, given.methods)
    table.print(220)
    written = write_table(args.output / f"table_{args.table}", table, lines, settings)
    if args.table == "methods":
        export_traces(given, found, args.output / "traces")
        written.append(args.output / "traces")
    say(written)
    return int(any(row.errors for one in found for row in one.rows))


def chosen_plan(args: argparse.Namespace, choices: Choices) -> Plan:
    layout = FIGURES[args.figure] if args.figure else LAYOUTS[args.table]
    backbones: Sequence[str] = layout.backbones
    environment = os.environ.get("BEEM_BACKBONE")
    backbones = args.backbone or ([environment] if environment else backbones)
    methods: Sequence[str] = args.methods or layout.methods
    for method in methods:
        if method not in METHODS:
            raise ConfigurationError(not_allowed("--methods", method, METHODS))
    if layout.relative and "final" not in methods:
        methods = ["final", *methods]  # what the others are compared with
    return Plan(backbones, args.tasks or layout.tasks, methods, args.output, args.seeds, choices)


def caption_table(args: argparse.Namespace, choices: Choices, jobs: int, devices: Sequence[str]) -> int:
    methods = args.methods or list(CAPTION_METHODS)
    for method in methods:
        if method not in CAPTION_METHODS:
            raise ConfigurationError(not_allowed("--methods", method, CAPTION_METHODS))
    check_metrics(args.metrics, args.spice_jars)
    variants = caption_variants(args.set, methods, choices)
    folder = args.output / "runs" / args.set
    if args.dry_run:
        runs = ((args.set, args.set, run) for run in caption_runs(variants, folder, args.seeds))
        hub = [variants[0].config["model"]["decoder"]["backbone"][part] for part in ("encoder", "decoder")]
        dry_run(runs, jobs, args.gpus, [name for name in hub if isinstance(name, str)], ()).print(200)
        return 0
    table, lines = run_caption_table(variants, folder, args.seeds, jobs, devices, args.metrics, args.spice_jars)
    table.print(200)
    say(write_table(args.output / f"table_{CAPTION_TABLE}", table, lines, caption_settings(variants)))
    return int(any(note.startswith("error:") for note in table.notes))


def json_object(flag: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{flag}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{flag}: found {text}, allowed: a JSON object")
    return found


def say(written: Sequence[Path]) -> None:
    print("wrote " + ", ".join(map(str, written)), file=sys.stderr)
