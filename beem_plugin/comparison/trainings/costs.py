"""What trainings cost, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from beem_plugin.comparison.trainings.runs import TrainingRun, epochs_of
from beem_plugin.comparison.trainings.trainings import Trainings
from beem_plugin.rendering.tables import Column, Table

TRAIN_ROWS = {
    "cola": 8551, "sst2": 67349, "mrpc": 3668, "qqp": 363846, "stsb": 5749, "mnli": 392702, "qnli": 104743,
    "rte": 2490, "wnli": 635, "coco": 566747, "shapes": 4000,
}  # fmt: skip
UNKNOWN_ROWS = 10_000
HEADS = {
    "encoder": Column("encoder", "text"),
    "data": Column("data", "text"),
    "training": Column("training", "text"),
    "layers": Column("layers", digits=0),
    "epochs": Column("epochs", digits=0),
    "done": Column("seeds done", "text"),
    "cost": Column("cost"),
    "seconds": Column("seconds a seed", digits=0),
}


def cost_table(
    plans: Mapping[tuple[str, str], Trainings],
    depths: Mapping[str, int],
    seconds_a_layer: float | None = None,
    jobs: int = 1,
) -> Table:
    """
    One row a training. Its time is estimated from the trainings of the same encoder that are done.

    # Parameters

    plans : `Mapping[tuple[str, str], Trainings]`
        By encoder and data, one of `TRAIN_ROWS` or not; empty text is not shown.
    depths : `Mapping[str, int]`
        Layers of each encoder before it is cut.
    seconds_a_layer : `float`, optional (default = no estimate)
        Of one sample in training, where no training is done.
    jobs : `int`, optional (default = `1`)
    """
    records: list[dict[str, Any]] = []
    rates: dict[str, list[float]] = {}
    for (encoder, data), plan in plans.items():
        for training in plan.trainings:
            finished = [run for seed in range(1, plan.seeds + 1) if (run := TrainingRun(training, seed)).is_finished]
            taken = [run.record["wall_seconds"] for run in finished if "wall_seconds" in run.record]
            layers, epochs = layers_of(training.config, depths[encoder]), epochs_of(training.config)
            work = layers * epochs * samples_of(training.config, data)
            rates.setdefault(encoder, []).extend(seconds / work for seconds in taken)
            records.append({
                "encoder": encoder or None, "data": data or None,
                "training": ", ".join(variant.name for variant in training.variants),
                "layers": layers, "epochs": epochs, "done": f"{len(finished)} of {plan.seeds}",
                "left": plan.seeds - len(finished), "seeds": plan.seeds, "work": work, "taken": taken,
            })  # fmt: skip
    deepest = max(record["layers"] for record in records)
    unit = min(record["work"] for record in records if record["layers"] == deepest)
    for record in records:
        known = rates[record["encoder"] or ""]
        rate = fmean(known) if known else seconds_a_layer
        record["cost"] = record["work"] / unit
        record["seconds"] = fmean(record["taken"]) if record["taken"] else rate and rate * record["work"]
    table = Table.of_records(records, HEADS)
    runs, left = (sum(record[key] for record in records) for key in ("seeds", "left"))
    table.title = f"{left} trainings to run, {runs - left} done"
    whole, rest = (sum(record[key] * record["cost"] for record in records) for key in ("seeds", "left"))
    table.notes.append(f"cost: layers times samples; 1 is the cheapest of full depth; all {whole:.1f}, left {rest:.1f}")
    if all(record["seconds"] is not None for record in records):
        minutes = sum(record["left"] * record["seconds"] for record in records) / 60
        source = "from the trainings that are done" if any(rates.values()) else "a rough estimate"
        at_a_time = f", {minutes / jobs:.0f} with {jobs} at a time" if jobs > 1 else ""
        table.notes.append(f"about {minutes:.0f} minutes of training{at_a_time}, {source}; judging apart")
    return table


def samples_of(config: dict[str, Any], data: str) -> float:
    """Samples of one epoch."""
    rows = TRAIN_ROWS.get(data, UNKNOWN_ROWS) * 0.9
    return float(min(rows, (config.get("dataset_reader") or {}).get("max_instances") or rows))


def layers_of(config: dict[str, Any], depth: int) -> int:
    model = config["model"]
    inside = (model.get("encoder") or model.get("decoder") or {}).get("backbone") or {}
    return int(inside.get("num_layers") or depth)
