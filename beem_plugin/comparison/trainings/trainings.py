"""The trainings that the variants of a comparison need: which there are, what is done, what they cost."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

from beem_plugin.common.archive_files import CONFIG_NAME
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import locked, write_json
from beem_plugin.comparison.plain_networks import distilled_config
from beem_plugin.comparison.trainings.launcher import Launcher, Steps, no_steps
from beem_plugin.comparison.trainings.runs import Training, TrainingRun, check_same, epochs_of, file_name, hash_of
from beem_plugin.comparison.trainings.trained import TrainedRun
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.rendering.tables import Column, Table

STATE_NAME = "variants.json"
IN_USE = "serialization directory {}: another process trains in it"
TRAIN_ROWS = {
    "cola": 8551, "sst2": 67349, "mrpc": 3668, "qqp": 363846, "stsb": 5749, "mnli": 392702, "qnli": 104743,
    "rte": 2490, "wnli": 635, "coco": 566747, "shapes": 4000,
}  # fmt: skip
UNKNOWN_ROWS = 10_000
HEADS = {name: Column(name, "text") for name in ("encoder", "data", "training")}
HEADS |= {name: Column(name, digits=0) for name in ("layers", "epochs")}
HEADS |= {"done": Column("seeds done", "text"), "cost": Column("cost"), "seconds": Column("seconds a seed", digits=0)}


class Trainings:
    """
    The trainings of `variants`, each once for every seed: those that differ only in the exit policy, its calibration or
    the engine share one, and one that has a `teacher` stands after it. `folder` gets `variants.json`, which training
    each variant has, and `trainings/NAME-KEY/seed_K`; what is in it from an earlier call is kept.
    """

    def __init__(self, variants: Sequence[Variant], folder: Path, seeds: int = 1) -> None:
        self.variants = list(variants)
        self.folder = folder
        self.seeds = seeds
        self.of: dict[str, Training] = {}  # by a variant's name
        by_key: dict[str, Training] = {}
        for variant in variants:
            config, teacher = variant.trained_part, self.of[variant.teacher] if variant.teacher else None
            if teacher is not None:
                config = distilled_config(config, teacher.key)
            key = hash_of(config)
            if key not in by_key:
                by_key[key] = Training(key, self._directory(variant.name, key), config, teacher=teacher)
            by_key[key].variants.append(variant)
            self.of[variant.name] = by_key[key]

    @property
    def trainings(self) -> list[Training]:
        """Each once, in the variants' order."""
        return list({training.key: training for training in self.of.values()}.values())

    @property
    def runs(self) -> list[TrainingRun]:
        return [TrainingRun(training, seed) for training in self.trainings for seed in range(1, self.seeds + 1)]

    def trained(self, name: str) -> list[TrainedRun]:
        """The finished runs of a variant, one a seed."""
        return [TrainedRun(run) for run in self.runs if run.training is self.of[name] and run.is_finished]

    def remember(self) -> None:
        """
        Keeps in the folder which training each variant has, and each training's config. A variant that had a training
        with another config which has begun is a `ConfigurationError`: the two would be mixed under one name.
        """
        path = self.folder / STATE_NAME
        known: dict[str, str] = json.loads(path.read_text("utf-8"))["variants"] if path.is_file() else {}
        for name, training in self.of.items():
            before = known.get(name, training.key)
            old = self._directory(name, before)
            if before != training.key and any(entry.is_dir() and any(entry.iterdir()) for entry in old.glob("seed_*")):
                config = json.loads((old / CONFIG_NAME).read_text("utf-8"))
                check_same(f"variant {name!r} in {self.folder}", config, training.config)
            known[name] = training.key
        for training in self.trainings:
            write_json(training.directory / CONFIG_NAME, training.config)
        write_json(path, {"variants": known})

    def _directory(self, name: str, key: str) -> Path:
        folder = self.folder / "trainings"
        return next(iter(sorted(folder.glob(f"*-{key}"))), folder / f"{file_name(name)}-{key}")


def train_all(
    plans: Sequence[Trainings], launcher: Launcher, steps: Steps = no_steps
) -> Iterator[tuple[TrainingRun, str | None]]:
    """
    Trains what is not done, the runs of several comparisons in one queue, and takes the `steps` of each run. Gives each
    run as it ends, or is found done, with its error in one line or `None`. The directories are locked meanwhile.
    """
    with ExitStack() as held:
        for folder in {plan.folder for plan in plans}:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(folder, IN_USE.format(folder)))
        for plan in plans:
            plan.remember()
        runs = [run for plan in plans for run in plan.runs]
        variants, trainings = (sum(len(getattr(plan, name)) for plan in plans) for name in ("variants", "trainings"))
        size = f"{variants} variants, {trainings} trainings, {plans[0].seeds} seeds"
        say(f"{size}; {sum(run.is_finished for run in runs)} of {len(runs)} done")
        for count, (run, error) in enumerate(launcher.run(runs, steps, say), 1):
            say(f"[{count}/{len(runs)}] {run}: {error or 'trained'}")
            yield run, error


def check_directory(directory: Path, recover: bool, force: bool) -> None:
    """Raises a `ConfigurationError` unless trainings may use the directory. Changes nothing."""
    if recover and force:
        raise ConfigurationError("--recover and --force contradict each other: give one of them")
    if directory.exists() and not directory.is_dir():
        raise ConfigurationError(f"serialization directory {directory}: it is a file")
    is_ours = (directory / STATE_NAME).is_file()
    if recover and not is_ours:
        raise ConfigurationError(f"--recover: there is no ablation in {directory} (no {STATE_NAME} is in it)")
    if not is_ours and directory.is_dir() and any(directory.iterdir()):
        raise ConfigurationError(f"serialization directory {directory} holds something else (no {STATE_NAME} is in it)")
    if is_ours:
        with locked(directory, IN_USE.format(directory)):
            pass


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def cost_table(
    plans: Mapping[tuple[str, str], Trainings],
    depths: Mapping[str, int],
    seconds_a_layer: float | None = None,
    jobs: int = 1,
) -> Table:
    """
    One row a training of `plans`, which are by encoder and data (one of `TRAIN_ROWS` or not; empty text is not shown).
    `depths` are the layers of each encoder before it is cut. Time is estimated from the trainings of the same encoder
    that are done, or else from `seconds_a_layer` of one sample.
    """
    records: list[dict[str, Any]] = []
    rates: dict[str, list[float]] = {}
    for (encoder, data), plan in plans.items():
        for training in plan.trainings:
            finished = [run for run in plan.runs if run.training is training and run.is_finished]
            taken = [run.record["wall_seconds"] for run in finished if "wall_seconds" in run.record]
            model, epochs = training.config["model"], epochs_of(training.config)
            backbone = (model.get("encoder") or model.get("decoder") or {}).get("backbone") or {}
            layers = int(backbone.get("num_layers") or depths[encoder])
            rows = TRAIN_ROWS.get(data, UNKNOWN_ROWS) * 0.9
            rows = float(min(rows, (training.config.get("dataset_reader") or {}).get("max_instances") or rows))
            work = layers * epochs * rows
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
