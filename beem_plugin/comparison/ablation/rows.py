"""From judgements, one a seed, to the rows of the table: medians with their smallest and largest."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from beem_plugin.calibration.curves import Curve, joined
from beem_plugin.common.errors import is_number
from beem_plugin.comparison.ablation.variant_files import Change, flat, in_one_line, to_json, values_of
from beem_plugin.comparison.trainings.variants import BASE, Variant
from beem_plugin.evaluation.statistics import Difference, mcnemar, paired_difference
from beem_plugin.rendering.tables import Estimate

SPREADS = (
    "layer_speedup", "average_exit", "average_layer", "layer_speedup_over_base", "gmacs", "mac_speedup_over_base",
    "seconds", "measured_speedup_over_base", "training_seconds", "validation_score",
)  # fmt: skip
SAME = ("judged_on", "calibrated_on", "samples", "main_metric", "parameters", "exit_parameters")
"""What all seeds have in common."""
BLOCKS = {"metrics": "early exit", "final_metrics": "last exit"}
OVER_BASE = {
    "mac_speedup_over_base": ("full_gmacs", "gmacs"),
    "measured_speedup_over_base": ("full_seconds", "seconds"),
}
"""Of each speed-up, which figure of the base's full depth is divided by which figure of the variant."""


@dataclass
class Row:
    """One line of the table; `differences` are from the base's config, `training` is a directory."""

    variant: Variant
    differences: list[Change]
    training: str
    results: list[dict[str, Any]] = field(default_factory=list)
    """One a seed: what `trained.judge` gives, with `seed` and the training's figures."""
    errors: list[str] = field(default_factory=list)  # what failed; with results as well if only some seeds did
    settings: list[dict[str, Any]] = field(default_factory=list)
    """Of a grid of which the best setting was kept: all settings with their validation scores."""
    difference: Difference | None = None
    """Of accuracy from `reference_of` the rows, paired over seeds, or over samples where there is one seed."""

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def main_metric(self) -> str:
        return str(self.results[0]["main_metric"])

    def spread(self, name: str, inside: str | None = None) -> Estimate | None:
        """
        The median over seeds of a number of the results, or of their block `inside`, with the smallest and largest.
        """
        return Estimate.spread((result if inside is None else result[inside]).get(name) for result in self.results)

    def curve(self) -> Curve | None:
        """The median accuracy over seeds at each speed that all of them reach."""
        return joined([result["curve"] for result in self.results], np.median)

    def figures(self) -> dict[str, Any]:
        """`SAME`, and the spreads of all numbers, those of a block as `metrics.accuracy`; empty without results."""
        if not self.results:
            return {}
        found = {key: self.results[0][key] for key in SAME}
        found |= {f"{block}.{name}": self.spread(name, block) for block in BLOCKS for name in self.results[0][block]}
        return found | {name: self.spread(name) for name in SPREADS}

    def to_json(self) -> dict[str, Any]:
        """Everything, for `ablation.json`."""
        content: dict[str, Any] = {"name": self.name, "diff": in_one_line(self.differences, whole_keys=True)}
        content |= {"differences": to_json(self.differences), "training": self.training, "errors": self.errors}
        content |= {"settings": self.settings} if self.settings else {}
        for key, value in self.figures().items():
            block, _, name = key.rpartition(".")
            place = content.setdefault(block, {}) if block else content
            if isinstance(value, Estimate):
                value = dict(zip(("median", "min", "max"), (value.value, *value.ends), strict=True))
            place[name] = value
        if not self.results:
            return content
        curve, left_out = self.curve(), ("curve", "right")
        content["warnings"] = list(dict.fromkeys(line for result in self.results for line in result["warnings"]))
        if self.difference is not None:
            content["difference_from_base"] = self.difference.to_json()
        lines = curve and {"layer_speedup": curve.speedup.tolist(), "accuracy": curve.accuracy.tolist()}
        seeds = [{key: value for key, value in one.items() if key not in left_out} for one in self.results]
        return content | {"curve": lines, "seeds": seeds}


def keep_best(rows: Sequence[Row], early_exit_on_validation: Callable[[Row], list[float]]) -> list[Row]:
    """
    The rows, but of each grid of candidates the setting that is best on validation data (the first of equals), with the
    others' scores in `settings` and their errors. Settings of equally good trainings, such as those that differ in the
    exit policy only, are told apart by `early_exit_on_validation`: the metric with early exit, one number a seed.
    """
    families: dict[str, list[Row]] = {}
    for row in rows:
        if row.variant.is_candidate:
            families.setdefault(row.variant.family, []).append(row)
    best = {name: best_of(members, early_exit_on_validation) for name, members in families.items()}
    return [row for row in rows if not row.variant.is_candidate or best[row.variant.family] is row]


def best_of(rows: Sequence[Row], early_exit_on_validation: Callable[[Row], list[float]]) -> Row:
    spreads = {row.name: row.spread("validation_score") for row in rows}
    scores = {name: None if spread is None else spread.value for name, spread in spreads.items()}
    best = max((score for score in scores.values() if score is not None), default=None)
    leading = [row for row in rows if row.results and scores[row.name] == best]
    early: dict[str, float] = {}
    if len(leading) > 1:
        early = {row.name: statistics.median(early_exit_on_validation(row) or [0.0]) for row in leading}
    chosen = max(leading or rows[:1], key=lambda row: early.get(row.name, 0.0))
    for row in rows:
        entry = {"setting": row.variant.setting, "validation_score": scores[row.name], "is_chosen": row is chosen}
        chosen.settings.append(entry | ({"early_exit_on_validation": early[row.name]} if row.name in early else {}))
    chosen.errors = [error if row is chosen else f"{row.name}: {error}" for row in rows for error in row.errors]
    return chosen


def reference_of(rows: Sequence[Row]) -> Row | None:
    """What all rows are compared with: a plain network that is as deep as the base, or deeper; or else the base."""
    base = rows[0] if rows and rows[0].name == BASE else None
    judged = [row for row in rows if row.variant.plain is not None and row.results]
    deepest = max(judged, key=lambda row: row.results[0]["depth"], default=None)
    if deepest is None or (base and base.results and base.results[0]["depth"] > deepest.results[0]["depth"]):
        return base
    return deepest


def compare_with_base(rows: Sequence[Row]) -> None:
    """
    Sets speed-ups over the reference at full depth (see `OVER_BASE`), and each row's `difference` from the reference.
    """
    base = reference_of(rows)
    first = base.results[0] if base is not None and base.results else {}
    depth = first.get("depth")
    for row in rows:
        for result in row.results:
            own = result.get("depth", depth)
            scale = 1.0 if depth is None or own is None else depth / own
            result["layer_speedup_over_base"] = scale * result["layer_speedup"]
            for name, (full, spent) in OVER_BASE.items():
                if full in first and spent in result:
                    result[name] = first[full] / result[spent]
        if base is not None and row is not base:
            row.difference = difference_from(base, row)


def difference_from(base: Row, row: Row) -> Difference | None:
    """Of accuracy over the seeds that both have; over the samples where that is one seed and both have the same."""
    one, other = ({result["seed"]: result for result in each.results} for each in (row, base))
    seeds = [seed for seed in one if seed in other and "accuracy" in one[seed]["metrics"]]
    if not seeds or one[seeds[0]]["judged_on"] != other[seeds[0]]["judged_on"]:
        return None
    if len(seeds) == 1:
        first, second = (found[seeds[0]].get("right") for found in (one, other))
        if first is not None and second is not None and len(first) == len(second):
            return mcnemar(first, second)
    return paired_difference(*([found[seed]["metrics"]["accuracy"] for seed in seeds] for found in (one, other)))


@dataclass
class Sweep:
    """Rows that differ in one number only: its dotted key, what they have in common, rising values, a row a value."""

    key: str
    name: str
    values: list[float]
    rows: list[Row]


def find_sweeps(rows: Sequence[Row]) -> list[Sweep]:
    """Of three values or more, by whatever names the variants have; a base that fits in is among them."""
    changed = {row.name: flat(row.differences) for row in rows if row.results}
    keys = dict.fromkeys(key for values in changed.values() for key, value in values.items() if is_number(value))
    configs = {row.name: values_of(row.variant.config) for row in rows}
    sweeps = []
    for key in keys:
        groups: dict[str, dict[float, Row]] = {}
        for row in rows:
            value: Any = configs[row.name].get(key)
            if row.results and is_number(value):
                others = sorted((name, other) for name, other in changed[row.name].items() if name != key)
                rest = in_one_line([(name, None, other) for name, other in others])
                groups.setdefault(rest, {}).setdefault(value, row)
        found = {rest: dict(sorted(members.items())) for rest, members in groups.items() if len(members) >= 3}
        for rest, members in found.items():
            counts = Counter(row.variant.family for row in members.values())
            # The families that give more than one, without those that only happen to fit in; or all but the base.
            families = [one for one, count in counts.items() if count > 1] or [one for one in counts if one != BASE]
            # One family swept in two numbers gives several lines, told apart by the other number.
            is_alone = sum(families[0] in {row.variant.family for row in m.values()} for m in found.values()) == 1
            sweeps.append(Sweep(key, ", ".join(families) if is_alone else rest, list(members), list(members.values())))
    return sweeps
