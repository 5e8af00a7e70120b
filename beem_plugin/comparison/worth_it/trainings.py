"""The trainings of `worth-it`: the config, plain networks, and plain networks that the one of full depth taught."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.comparison.ablation.judging import TrainedRun
from beem_plugin.comparison.ablation.trainings import Training, TrainingRun, epochs_of, plan
from beem_plugin.comparison.ablation.variants import Variant
from beem_plugin.comparison.plain_networks import distilled_config, encoder_of, full_depth, plain_config
from beem_plugin.comparison.worth_it.networks import Networks, Plain, Traces
from beem_plugin.rendering.tables import Column, Table, text

EXITS = "early exits"


@dataclass(frozen=True)
class DistilledRun(TrainingRun):
    """A training whose teacher is `teacher` with the same seed; in the training's config it is named by its key."""

    teacher: Training

    @property
    def config(self) -> dict[str, Any]:
        found = super().config
        objective = found["model"]["objective"] | {"teacher": str(TrainingRun(self.teacher, self.seed).archive_path)}
        return {**found, "model": {**found["model"], "objective": objective}}


@dataclass
class Plan:
    """
    # Parameters

    depth : `int`
        Layers of the encoder before it is cut.
    exits : `Training`
    plain : `dict[Plain, Training]`
    seeds : `int`
    """

    depth: int
    exits: Training
    plain: dict[Plain, Training]
    seeds: int

    @classmethod
    def of(
        cls, config: dict[str, Any], depths: Sequence[int], with_distilled: bool, seeds: int, directory: Path
    ) -> Plan:
        """The trainings that answer the question for a config, below `directory`."""
        depth = full_depth(config)
        members = [Plain(layers) for layers in sorted({*depths, depth}, reverse=True)]
        members += [Plain(one.layers, True) for one in members[1:] if with_distilled]
        variants = [Variant(EXITS, config, EXITS)]
        full_key = ""
        trainings = {}
        for one in members:
            own = plain_config(config, one.layers)
            if one.distilled:
                own = distilled_config(own, full_key)
            variants.append(Variant(one.name, own, one.name))
            (training,) = plan(variants[-1:], directory)
            full_key = full_key or training.key
            trainings[one] = training
        (exits,) = plan(variants[:1], directory)
        return cls(depth, exits, trainings, seeds)

    @property
    def trainings(self) -> list[Training]:
        return [self.exits, *self.plain.values()]

    def run(self, training: Training, seed: int) -> TrainingRun:
        distilled = any(one.distilled and other is training for one, other in self.plain.items())
        return DistilledRun(training, seed, self.plain[Plain(self.depth)]) if distilled else TrainingRun(training, seed)

    def stages(self) -> Iterator[list[TrainingRun]]:
        """All trainings; those that need others done come after them."""
        taught = [training for one, training in self.plain.items() if one.distilled]
        first = [training for training in self.trainings if training not in taught]
        for trainings in (first, taught):
            yield [self.run(training, seed) for seed in range(1, self.seeds + 1) for training in trainings]

    def trained(self, training: Training) -> list[TrainedRun]:
        return [TrainedRun(self.run(training, seed)) for seed in range(1, self.seeds + 1)]

    def networks(self) -> Networks:
        """The traces of all trainings: of the labelled samples of what is held out and of what is reported on."""
        (variant,) = self.exits.variants
        sources = variant.calibration_source(), variant.judged_source()
        batch_size = variant.batch_size

        def traces(training: Training) -> list[Traces]:
            found = []
            for run in self.trained(training):
                held_out = run.trace(sources[0], batch_size, by_training_reader=True)
                reported = run.trace(sources[1], batch_size)
                run.release()
                for trace, source in zip((held_out, reported), sources, strict=True):
                    if not bool(trace.known.any()):
                        raise ConfigurationError(f"{source}: found no sample with a label, allowed: labelled data")
                found.append(Traces(*(trace.select(trace.known) for trace in (held_out, reported))))
            return found

        return Networks(self.depth, traces(self.exits), {one: traces(training) for one, training in self.plain.items()})

    def costs(self) -> Table:
        """What `--dry-run` prints: each training with its cost, in trainings of the plain network of full depth."""
        table = Table(
            [
                *text("training"),
                Column("layers", digits=0),
                Column("epochs", digits=0),
                *text("seeds done"),
                Column("cost"),
                Column("seconds a seed", digits=0),
            ]
        )
        layers = [self.layers_of(training) for training in self.trainings]
        epochs = [epochs_of(training.config) for training in self.trainings]
        whole = self.depth * epochs_of(self.plain[Plain(self.depth)].config)
        costs = [count * length / whole for count, length in zip(layers, epochs, strict=True)]
        done = [
            [run for run in (self.run(training, seed) for seed in range(1, self.seeds + 1)) if run.is_finished]
            for training in self.trainings
        ]
        seconds = [[TrainedRun(run).figures["training_seconds"] or 0.0 for run in runs] for runs in done]
        known = [(cost, one) for cost, own in zip(costs, seconds, strict=True) for one in own]
        rate = sum(one for _, one in known) / sum(cost for cost, _ in known) if known else None
        for training, count, length, cost, own in zip(self.trainings, layers, epochs, costs, seconds, strict=True):
            each = sum(own) / len(own) if own else None if rate is None else rate * cost
            state = f"{len(own)} of {self.seeds}"
            table.rows.append([training.variants[0].name, count, length, state, cost, each])
        left = sum(cost * (self.seeds - len(own)) for cost, own in zip(costs, seconds, strict=True))
        total = self.seeds * sum(costs)
        table.notes.append(
            f"cost: layers times epochs, 1 is the plain network of full depth; all {total:.1f}, left {left:.1f}"
            + ("" if rate is None else f", about {rate * left:.0f} s")
        )
        return table

    def layers_of(self, training: Training) -> int:
        return int(encoder_of(training.config)["backbone"].get("num_layers") or self.depth)
