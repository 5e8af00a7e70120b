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
from beem_plugin.comparison.paper.methods import Choices, shown_encoder, variants_of
from beem_plugin.comparison.trainings.runs import file_name
from beem_plugin.comparison.trainings.trained import TrainedRun, judge
from beem_plugin.comparison.trainings.trainings import Trainings
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.data.hub import resolve_model_name

DEPTHS = {"large": 24}
BASE_DEPTH = 12
"""Layers of an encoder in the hub, by a part of its name; a local one is looked at."""


@dataclass(frozen=True)
class Plan:
    """What a table trains. Runs are in OUTPUT/runs/ENCODER/TASK."""

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
        return variants_of(self.methods, task, backbone, three_quarters(backbone), self.choices)

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

    def speed(self, result: dict[str, Any]) -> float:
        """The layer speed-up over the whole encoder."""
        return float(depth_of(self.backbone) / result["depth"] * result["layer_speedup"])

    def lines(self) -> list[dict[str, Any]]:
        """One a method and seed, for tables and files: `value` is the task's metric in percent."""
        judged = [(row.name, result["seed"], result) for row in self.rows for result in row.results]
        values = {(name, seed): 100 * value_of(result) for name, seed, result in judged}
        lines = []
        for name, seed, result in judged:
            base = values.get(("final", seed))
            line = {"encoder": self.backbone, "task": self.task, "method": name, "seed": seed}
            line["value"] = values[name, seed]
            line |= {} if base is None else {"difference": line["value"] - base}
            line["layer_speedup"] = self.speed(result)
            for prefix, part in (("", result), *((f"{name}_", part) for name, part in result["parts"].items())):
                line |= {f"{prefix}{key}": 100 * number for key, number in part["metrics"].items()}
            lines.append(line | {key: result[key] for key in ("training_seconds", "calibrated_on")})
        return lines


def value_of(result: dict[str, Any]) -> float:
    """A judgement's number for the table: Matthews correlation of CoLA, Pearson/Spearman of STS-B, else accuracy."""
    if parts := result.get("parts"):
        return sum(map(value_of, parts.values())) / len(parts)
    metrics = result["metrics"]
    return float(metrics[result["main_metric"] if "accuracy" not in metrics or "matthews" in metrics else "accuracy"])


def run_table(given: Plan, jobs: int = 1, devices: Sequence[str] = ()) -> list[TaskRows]:
    """Trains what is missing, and judges; of several test sets, as MNLI's two, each in a result's `parts` as well."""
    found = []
    for backbone, task in given.cells():
        trainings = given.trainings(backbone, task)
        found.append(TaskRows(backbone, task, trainings, ablate(trainings, jobs, devices=devices)))
        for row in found[-1].rows:
            sources = row.variant.config["test_data_path"]
            for trained, result in paired(trainings, row):
                several = sources.items() if isinstance(sources, dict) else ()
                result["parts"] = {name: judge(row.variant, trained, source) for name, source in several}
    return found


def paired(trainings: Trainings, row: Row) -> list[tuple[TrainedRun, dict[str, Any]]]:
    """Each result of a row with its run."""
    results = {result["seed"]: result for result in row.results}
    return [(run, results[run.run.seed]) for run in trainings.trained(row.name) if run.run.seed in results]


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
        for run, result in () if name.startswith("beem-") else paired(table.trainings, row):
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
                metrics["layer_speedup"] = table.speed(result)
            write_json(target / "metrics.json", metrics)


def last_exit_parameters(trained: TrainedRun) -> int:
    """Parameters of the network with its last exit alone; what layers share counts once."""
    encoder: Any = trained.archive.model.encoder
    modules = [encoder.backbone, encoder.exits[-1]] if hasattr(encoder, "exits") else [encoder]
    return sum({id(one): one.numel() for module in modules for one in module.parameters()}.values())
