"""What a table would run, download and take, before anything is run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from beem_plugin.comparison.ablation.trainings import TrainingRun
from beem_plugin.comparison.paper.runs import depth_of
from beem_plugin.dataset_readers.glue_sources import HUB_NAME
from beem_plugin.rendering.tables import Column, Table, text

TRAIN_ROWS = {
    "cola": 8551,
    "sst2": 67349,
    "mrpc": 3668,
    "qqp": 363846,
    "stsb": 5749,
    "mnli": 392702,
    "qnli": 104743,
    "rte": 2490,
    "wnli": 635,
    "coco": 566747,
    "shapes": 4000,
}
SECONDS_A_LAYER = {"cpu": 4e-3, "gpu": 4e-5}
"""Of one sample in training, where no run is done yet: a layer of 768 with 40 tokens, one core or one H200."""


def dry_run(
    runs: Iterable[tuple[str, str, TrainingRun]], jobs: int, gpus: int, backbones: Sequence[str], tasks: Sequence[str]
) -> Table:
    """Every training that is not done, and its time: from those that are, or else a rough estimate."""
    table = Table(
        [*text("encoder", "task", "training", "rows of"), Column("seed", digits=0), Column("minutes", digits=1)]
    )
    pending, done = [], 0
    known: dict[str, list[float]] = {}
    for backbone, task, run in runs:
        work = samples(run.config, task)
        if run.is_finished:
            done += 1
            seconds = json.loads(run.record_path.read_text("utf-8")).get("wall_seconds")
            if seconds:
                known.setdefault(backbone, []).append(seconds / work)
        else:
            pending.append((backbone, task, run, work))
    total = 0.0
    for backbone, task, run, work in pending:
        rough = SECONDS_A_LAYER["gpu" if gpus else "cpu"] * layers(run.config, backbone)
        rate = sum(known[backbone]) / len(known[backbone]) if backbone in known else rough
        names = ", ".join(variant.name for variant in run.training.variants)
        table.rows.append([backbone, task, run.training.directory.name, names, run.seed, rate * work / 60])
        total += rate * work / 60
    table.title = f"{len(pending)} trainings to run, {done} done"
    table.notes.append(
        f"{total:.0f} minutes of training, {total / max(jobs, 1):.0f} with {jobs} at a time; judging apart"
    )
    kind = "from the trainings that are done" if known else "a rough estimate, better once one training is done"
    table.notes.append(f"times are {kind}")
    needed = downloads(backbones, tasks)
    table.notes.append(f"to be downloaded unless cached: {', '.join(needed)}" if needed else "nothing is downloaded")
    return table


def samples(config: dict[str, Any], task: str) -> float:
    """Samples that pass the network in training, over all stages."""
    trainer = config["trainer"]
    reader = config["dataset_reader"]
    stages = trainer.get("stages") or [{}]
    epochs = sum(stage.get("num_epochs") or trainer["num_epochs"] for stage in stages)
    rows = TRAIN_ROWS.get(task, 10_000) * 0.9
    return float(epochs * min(rows, reader.get("max_instances") or rows))


def layers(config: dict[str, Any], backbone: str) -> int:
    model = config["model"]
    inside = (model.get("encoder") or model.get("decoder") or {}).get("backbone") or {}
    if inside.get("num_layers"):
        return int(inside["num_layers"])
    return depth_of(backbone) if "encoder" in model else 12


def downloads(backbones: Sequence[str], tasks: Sequence[str]) -> list[str]:
    """Encoders and data that are neither in a folder nor in a package."""
    found = [name for name in backbones if not (name.startswith("package:") or Path(name).is_dir())]
    if not os.environ.get("GLUE_DIR"):
        found += [f"{HUB_NAME} ({task})" for task in tasks]
    return found
