"""Trains and judges a table's methods on its tasks. Tables share trainings: what is in the folder is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beem_plugin.backbones.loading import make_config, read_config
from beem_plugin.common.files import write_json
from beem_plugin.comparison.ablation.ablate import ablate
from beem_plugin.comparison.ablation.judging import TrainedRun, judge
from beem_plugin.comparison.ablation.rows import Row
from beem_plugin.comparison.ablation.trainings import TrainingRun, file_name, plan
from beem_plugin.comparison.ablation.variants import Variant
from beem_plugin.comparison.paper.methods import Choices, shown_encoder, variant_of
from beem_plugin.data.pretrained import resolve_model_name

DEPTHS = {"large": 24}
BASE_DEPTH = 12
"""Layers of an encoder in the hub, by a part of its name; a local one is looked at."""


@dataclass(frozen=True)
class Plan:
    """
    The runs of a table.

    # Parameters

    backbones, tasks, methods : `Sequence[str]`
    output : `Path`
        Runs are in OUTPUT/runs/ENCODER/TASK.
    seeds : `int`
    choices : `Choices`
    """

    backbones: Sequence[str]
    tasks: Sequence[str]
    methods: Sequence[str]
    output: Path
    seeds: int
    choices: Choices = field(default_factory=Choices)

    def variants(self, backbone: str, task: str) -> list[Variant]:
        layers = three_quarters(backbone)
        return [variant_of(method, task, backbone, layers, self.choices) for method in self.methods]

    def folder(self, backbone: str, task: str) -> Path:
        return self.output / "runs" / file_name(shown_encoder(backbone)) / task

    def runs(self) -> Iterator[tuple[str, str, TrainingRun]]:
        """Backbone, task and every training."""
        for backbone in self.backbones:
            for task in self.tasks:
                folder = self.folder(backbone, task)
                for training in plan(self.variants(backbone, task), folder / "trainings"):
                    for seed in range(1, self.seeds + 1):
                        yield backbone, task, TrainingRun(training, seed)


@dataclass
class TaskRows:
    """All methods on one task with one encoder."""

    backbone: str
    task: str
    rows: list[Row]
    depth: int
    """Layers of the encoder."""

    def row(self, method: str) -> Row | None:
        return next((row for row in self.rows if row.name == method), None)

    def values(self, method: str) -> dict[int, float]:
        """The task's metric in percent by seed; of several test sets the mean."""
        row = self.row(method)
        return {} if row is None else {result["seed"]: 100 * value_of(result) for result in row.results}

    def speeds(self, method: str) -> list[float]:
        """The layer speed-up over the whole encoder, one number a seed."""
        row = self.row(method)
        found = [] if row is None else row.results
        return [self.depth / result["depth"] * result["layer_speedup"] for result in found]


def value_of(result: dict[str, Any]) -> float:
    """A judgement's number for the table: Matthews correlation of CoLA, Pearson/Spearman of STS-B, else accuracy."""
    parts = result.get("parts")
    if parts:
        return sum(value_of(part) for part in parts.values()) / len(parts)
    metrics = result["metrics"]
    return float(metrics[result["main_metric"] if "accuracy" not in metrics or "matthews" in metrics else "accuracy"])


def run_table(given: Plan, jobs: int = 1, devices: Sequence[str] = ()) -> list[TaskRows]:
    """Trains what is missing, and judges."""
    found = []
    for backbone in given.backbones:
        for task in given.tasks:
            variants = given.variants(backbone, task)
            folder = given.folder(backbone, task)
            rows = ablate(variants, folder, given.seeds, jobs, devices=devices)
            add_parts(rows, variants, folder)
            found.append(TaskRows(backbone, task, rows, depth_of(backbone)))
    return found


def add_parts(rows: Sequence[Row], variants: Sequence[Variant], folder: Path) -> None:
    """Judges each of several test sets by itself, as MNLI's two."""
    trainings = {
        variant.name: training for training in plan(variants, folder / "trainings") for variant in training.variants
    }
    for row in rows:
        sources = row.variant.config["test_data_path"]
        for result in row.results if isinstance(sources, dict) else ():
            trained = TrainedRun(TrainingRun(trainings[row.name], result["seed"]))
            parts = {name: judge(row.variant, trained, source) for name, source in sources.items()}
            result["parts"] = {
                name: {key: part[key] for key in ("metrics", "main_metric")} for name, part in parts.items()
            }


def depth_of(encoder: str) -> int:
    """Layers of an encoder, without access to the hub."""
    name = resolve_model_name(encoder, "--backbone")
    if Path(name).is_dir():
        return int(make_config(read_config(name, "--backbone"), "--backbone").num_hidden_layers)
    return next((layers for part, layers in DEPTHS.items() if part in name), BASE_DEPTH)


def three_quarters(encoder: str) -> int:
    """Layers of the network that is cut down: 9 of 12."""
    return max(1, 3 * depth_of(encoder) // 4)


def export_traces(given: Plan, tables: Sequence[TaskRows], folder: Path) -> None:
    """
    Writes METHOD/TASK-SEED/ with `calibration.npz`, `validation.npz` and `metrics.json`, which
    `scripts/compare_methods` and `scripts/compare_policies` read. BEEM's training is "beem".
    """
    by_task = {(table.backbone, table.task): table for table in tables}
    for backbone, task, run in given.runs():
        table = by_task[backbone, task]
        for variant in run.training.variants:
            name = "beem" if variant.name == "beem-a" else variant.name
            row = table.row(variant.name)
            result = next((found for found in row.results if found["seed"] == run.seed), None) if row else None
            if result is None or name.startswith("beem-"):
                continue
            trained = TrainedRun(run)
            target = folder / name / f"{task}-{run.seed - 1}"
            for part, source in (
                ("calibration", variant.calibration_source()),
                ("validation", variant.judged_source()),
            ):
                trained.trace(source, 64).save(target / f"{part}.npz")
            metrics = {
                "seconds": result["training_seconds"],
                "num_parameters": result["parameters"],
                "num_parameters_of_last_exit_only": last_exit_parameters(trained),
                "test_early_exit_accuracy": result["metrics"].get("accuracy"),
                "test_early_exit_layer_speedup": result["layer_speedup"],
            }
            if name in ("hashee", "reduced") or name.startswith("plain_"):  # points without a rule
                metrics["layer_speedup"] = table.depth / result["depth"] * result["layer_speedup"]
            write_json(target / "metrics.json", metrics)


def last_exit_parameters(trained: TrainedRun) -> int:
    """Parameters of the network with its last exit alone; what layers share counts once."""
    encoder: Any = trained.archive.model.encoder
    modules = [encoder.backbone, encoder.exits[-1]] if hasattr(encoder, "exits") else [encoder]
    return sum({id(one): one.numel() for module in modules for one in module.parameters()}.values())
