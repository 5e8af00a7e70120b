"""Trains and judges a table's methods on its tasks. Tables share trainings: what is in the folder is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beem_plugin.backbones.loading import make_config, read_config
from beem_plugin.common.files import write_json
from beem_plugin.comparison.ablation.ablate import ablate
from beem_plugin.comparison.ablation.rows import Row
from beem_plugin.comparison.paper.methods import Choices, shown_encoder, variant_of
from beem_plugin.comparison.trainings.runs import file_name
from beem_plugin.comparison.trainings.trained import TrainedRun, judge
from beem_plugin.comparison.trainings.trainings import Trainings
from beem_plugin.comparison.trainings.variants import Variant
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

    def cells(self) -> list[tuple[str, str]]:
        """Each backbone and task."""
        return [(backbone, task) for backbone in self.backbones for task in self.tasks]

    def variants(self, backbone: str, task: str) -> list[Variant]:
        layers = three_quarters(backbone)
        return [variant_of(method, task, backbone, layers, self.choices) for method in self.methods]

    def trainings(self, backbone: str, task: str, variants: Sequence[Variant] | None = None) -> Trainings:
        """Of the methods, or of `variants` of them."""
        folder = self.output / "runs" / file_name(shown_encoder(backbone)) / task
        return Trainings(self.variants(backbone, task) if variants is None else variants, folder, self.seeds)


@dataclass
class TaskRows:
    """All methods on one task with one encoder."""

    backbone: str
    task: str
    trainings: Trainings
    rows: list[Row]

    @property
    def depth(self) -> int:
        """Layers of the encoder."""
        return depth_of(self.backbone)

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
    for backbone, task in given.cells():
        trainings = given.trainings(backbone, task)
        found.append(TaskRows(backbone, task, trainings, ablate(trainings, jobs, devices=devices)))
        add_parts(found[-1])
    return found


def add_parts(table: TaskRows) -> None:
    """Judges each of several test sets by itself, as MNLI's two."""
    for row in table.rows:
        sources = row.variant.config["test_data_path"]
        for trained in table.trainings.trained(row.name) if isinstance(sources, dict) else ():
            parts = {name: judge(row.variant, trained, source) for name, source in sources.items()}
            (result,) = (result for result in row.results if result["seed"] == trained.run.seed)
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


def export_traces(tables: Sequence[TaskRows], folder: Path) -> None:
    """
    Writes METHOD/TASK-SEED/ with `calibration.npz`, `validation.npz` and `metrics.json`, which
    `scripts/compare_methods` and `scripts/compare_policies` read. BEEM's training is "beem".
    """
    for table, row in [(one, row) for one in tables for row in one.rows]:
        name, variant = "beem" if row.name == "beem-a" else row.name, row.variant
        trained = {one.run.seed: one for one in table.trainings.trained(row.name)}
        for result in () if name.startswith("beem-") else row.results:
            run = trained[result["seed"]]
            target = folder / name / f"{table.task}-{result['seed'] - 1}"
            run.trace(variant.calibration_source(), 64).save(target / "calibration.npz")
            run.trace(variant.judged_source(), 64).save(target / "validation.npz")
            metrics = {
                "seconds": result["training_seconds"],
                "num_parameters": result["parameters"],
                "num_parameters_of_last_exit_only": last_exit_parameters(run),
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
