"""Exit rules on the traces of trainings, in folders TASK-SEED: fitted on one trace, curves read off another."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import beem_plugin.calibration.thresholds
import beem_plugin.exits.policies  # noqa: F401  registers what `RULES` names
from beem_plugin.calibration.curves import SPEEDS, Curve, threshold_curve
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.comparison.result import fitted
from beem_plugin.comparison.trainings.trained import TrainedRun
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.evaluation.statistics import Difference, mean_and_error, over_tasks, paired_difference
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.rendering.tables import Column, Estimate, Table, text

NEVER = {"thresholds": "never"}  # a stand-in: the score is fitted, and thresholds are swept afterwards


def scored(kind: str, **options: Any) -> dict[str, Any]:
    return {"type": kind, **options, **NEVER}


RULES: dict[str, list[dict[str, Any]]] = {
    "max_probability": [scored("max_probability")],
    "margin": [scored("margin")],
    "entropy": [scored("entropy")],
    "max_probability, temperature": [{"type": "calibrated", "policy": scored("max_probability")}],
    "max_probability, vector": [{"type": "calibrated", "calibration": "vector", "policy": scored("max_probability")}],
    "beem-a": [scored("beem", weights="accuracy")],
    "beem-c": [scored("beem", weights="cost")],
    "voting": [
        scored("voting", exponent=exponent, min_exit=first) for exponent in (0.0, 0.5, 1.0) for first in (1, 2, 3)
    ],
    "cascaded_ensemble": [scored("cascaded_ensemble", weights=kind) for kind in ("uniform", "fit")],
    "expected_gain": [scored("expected_gain")],
    "confident_patience": [
        {"type": "confident_patience", "patience": count, "entropy_threshold": 0.0} for count in range(2, 7)
    ],
    "patience": [{"type": "patience", "patience": 1}],
}
"""The settings of each rule, of which one is chosen on calibration data."""


def rule_scores(settings: Sequence[Mapping[str, Any]], calibration: ExitTrace, trace: ExitTrace) -> ScoreTable:
    """The scores of `trace`, by the setting whose curve on the calibration data has the largest area."""
    policies = [fitted(config, calibration) for config in settings]
    areas = [threshold_curve(one.scores(calibration)).area() for one in policies] if len(policies) > 1 else [None]
    found = [-math.inf if area is None else area for area in areas]
    best = policies[found.index(max(found))]
    best.bind(trace.exit_layers, trace.num_labels)
    return best.scores(trace)


def save_traces(run: TrainedRun, variant: Variant, folder: Path) -> tuple[ExitTrace, ExitTrace]:
    """Writes the traces of a training that `load_traces` reads, and returns them."""
    calibration, validation = run.traces(variant)
    calibration.save(folder / "calibration.npz")
    validation.save(folder / "validation.npz")
    return calibration, validation


def load_traces(folder: Path) -> tuple[ExitTrace, ExitTrace]:
    """What a rule is fitted on, and what it is judged on."""
    return ExitTrace.load(folder / "calibration.npz"), ExitTrace.load(folder / "validation.npz")


def curve_record(curve: Curve | None, fastest: float = 3.0) -> dict[str, float | None]:
    """`area` from 1x to `fastest`, and the accuracy `at_1.5`, `at_2.0`, `at_2.5` in percent."""
    at = {f"at_{speed}": None if curve is None else curve.at(speed) for speed in SPEEDS}
    area = None if curve is None else curve.area(high=fastest)
    return {"area": area, **{key: None if value is None else 100 * value for key, value in at.items()}}


@dataclass
class Records:
    """
    Figures of rules or of methods, see `curve_record`: a record a network, with the name at `key`, `task` and `seed`.
    """

    records: list[dict[str, Any]]
    key: str

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(record[self.key] for record in self.records))

    @property
    def tasks(self) -> list[str]:
        return sorted({record["task"] for record in self.records})

    def by_task(self, name: str, figure: str) -> dict[str, list[float]]:
        """Of each task one number a seed; NaN where there is none."""
        return {task: list(self._by_seed(name, task, figure).values()) for task in self.tasks}

    def mean(self, name: str, figure: str, task: str | None = None) -> float:
        """Over seeds, and over tasks unless one is given; -1 where a number is missing."""
        values = self.by_task(name, figure)
        mean = over_tasks(values if task is None else {task: values[task]})[0]
        return -1.0 if np.isnan(mean) else mean

    def table(self, figure: str, title: str) -> Table:
        """Mean of a figure by task and of all tasks, with standard error; the best first."""
        columns = [*text(self.key), *(Column(name, better="up") for name in (*self.tasks, "all tasks"))]
        names = sorted(self.names, key=lambda name: -self.mean(name, figure))
        return Table(columns, [[name, *estimates(self.by_task(name, figure))] for name in names], title)

    def differences(self, figure: str, references: Mapping[str, str]) -> dict[str, dict[str, list[float]]]:
        """Of each name and task, differences from the task's reference, by the seeds that both have."""
        found: dict[str, dict[str, list[float]]] = {}
        for name in self.names:
            for task in self.tasks:
                own, other = (self._by_seed(one, task, figure) for one in (name, references[task]))
                both = [seed for seed in own if seed in other]
                found.setdefault(name, {})[task] = [own[seed] - other[seed] for seed in both]
        return found

    def _by_seed(self, name: str, task: str, figure: str) -> dict[str, float]:
        own = (one for one in self.records if one[self.key] == name and one["task"] == task)
        return {one["seed"]: math.nan if one[figure] is None else one[figure] for one in own}


def paired_tests(differences: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Difference]:
    """Paired t-tests of `Records.differences` over all tasks and seeds; of names that lack a number none."""
    pairs = {name: [value for values in own.values() for value in values] for name, own in differences.items()}
    return {
        name: paired_difference(values, [0.0] * len(values))
        for name, values in pairs.items()
        if values and not np.isnan(values).any()
    }


def differences_table(differences: Mapping[str, Mapping[str, Sequence[float]]], references: Mapping[str, str]) -> Table:
    heads = (*(f"{task} ({reference})" for task, reference in references.items()), "all tasks")
    columns = [*text("less"), *(Column(name, sign=True) for name in heads), *text("paired t-test, all tasks and seeds")]
    tests = paired_tests(differences)
    rows = [[name, *estimates(own), tests[name].text(1) if name in tests else "-"] for name, own in differences.items()]
    return Table(columns, rows, "area, paired by task and seed")


def estimates(values: Mapping[str, Sequence[float]]) -> list[Estimate | None]:
    """Of each task over its seeds, and of all tasks; `None` where a value is missing."""
    found = [mean_and_error(own) if len(own) else (math.nan, 0.0) for own in values.values()]
    found.append(over_tasks(values) if all(map(len, values.values())) else (math.nan, 0.0))
    return [None if np.isnan(mean) else Estimate(mean, error) for mean, error in found]
