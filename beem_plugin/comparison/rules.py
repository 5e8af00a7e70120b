"""Exit rules on the traces of trainings, in folders TASK-SEED: fitted on one trace, curves read off another."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import beem_plugin.calibration.thresholds
import beem_plugin.exits.policies  # noqa: F401  registers what `RULES` names
from beem_plugin.calibration.curves import Curve, threshold_curve, vector_curve
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.comparison.result import build
from beem_plugin.evaluation.statistics import mean_and_error, over_tasks
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.rendering.tables import Estimate

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


def fitted(config: Mapping[str, Any], trace: ExitTrace) -> ExitPolicy:
    policy = build(config, trace)
    if not policy.is_calibrated:
        policy.calibrate(trace)
    return policy


def rule_scores(settings: Sequence[Mapping[str, Any]], calibration: ExitTrace, trace: ExitTrace) -> ScoreTable:
    """The scores of `trace`, by the setting whose curve on the calibration data has the largest area."""
    policies = [fitted(config, calibration) for config in settings]
    areas = [threshold_curve(one.scores(calibration)).area() for one in policies] if len(policies) > 1 else [None]
    found = [-math.inf if area is None else area for area in areas]
    best = policies[found.index(max(found))]
    best.bind(trace.exit_layers, trace.num_labels)
    return best.scores(trace)


def patience_curve(table: ScoreTable) -> Curve:
    """One point for each number of exits in a row."""
    return vector_curve(table, [[count] * (table.num_exits - 1) for count in range(1, table.num_exits + 1)])


def task_and_seed(folder: Path) -> dict[str, str]:
    task, _, seed = folder.name.rpartition("-")
    return {"task": task, "seed": seed}


def load_traces(folder: Path) -> tuple[ExitTrace, ExitTrace]:
    """What a rule is fitted on, and what it is judged on."""
    return ExitTrace.load(folder / "calibration.npz"), ExitTrace.load(folder / "validation.npz")


@dataclass
class Records:
    """Figures of rules, a record a folder: `key` has the rule's name, beside `task` and `seed`."""

    records: list[dict[str, Any]]
    key: str

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(record[self.key] for record in self.records))

    @property
    def tasks(self) -> list[str]:
        return sorted({record["task"] for record in self.records})

    def values(self, name: str, task: str, figure: str) -> list[float]:
        """One number a seed; NaN where there is none."""
        own = [record for record in self.records if record[self.key] == name and record["task"] == task]
        return [math.nan if record[figure] is None else record[figure] for record in own]

    def by_task(self, name: str, figure: str) -> dict[str, Sequence[float]]:
        return {task: self.values(name, task, figure) for task in self.tasks}

    def finite(self) -> list[dict[str, Any]]:
        """The records with `None` in place of NaN, for JSON."""
        return [{key: None if value != value else value for key, value in one.items()} for one in self.records]


def estimates(values: Mapping[str, Sequence[float]]) -> list[Estimate | None]:
    """Of each task over its seeds, and of all tasks; `None` where a value is missing."""
    found = [*map(mean_and_error, values.values()), over_tasks(values)]
    return [None if np.isnan(mean) else Estimate(mean, error) for mean, error in found]
