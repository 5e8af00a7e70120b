"""The result of `worth-it` as data, as a table and as a plot."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from beem_plugin.calibration.curves import Curve, joined, threshold_curve
from beem_plugin.comparison.worth_it.networks import Alternative, Networks, layers_text
from beem_plugin.comparison.worth_it.options import Option
from beem_plugin.comparison.worth_it.verdicts import LAYERS, Verdict, headline
from beem_plugin.evaluation.statistics import Difference, mean_and_error
from beem_plugin.rendering.plots import Points, Series, SpeedPanel, speed_plot
from beem_plugin.rendering.tables import Column, Estimate, Table, text

EXITS = "early exits"
COSTS = {LAYERS: "layers", "single": "seconds one by one", "file": "seconds of a file"}
FARTHEST = 3.5


@dataclass
class WorthIt:
    """The answer, and what it is made of."""

    options: list[Option]
    verdicts: list[Verdict]  # one a speed
    by: str  # what equal cost means: a key of `COSTS`
    seeds: int
    samples: int  # labelled, that are reported on
    judged_on: str
    calibrated_on: str
    machine: dict[str, Any] = field(default_factory=dict)  # device and libraries; empty without measured seconds
    training_seconds: dict[str, float] = field(default_factory=dict)
    """Of the first seed, by name of the option or `EXITS`."""
    choice: dict[str, Any] = field(default_factory=dict)
    """`depth`, chosen by `choose_depth` on held-out data, and `exits`, by `choose_exits`, where there are many."""

    @property
    def headline(self) -> str:
        return headline(self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """What `worth_it.json` holds."""
        own = {name: value for name, value in vars(self).items() if name not in ("options", "verdicts")}
        verdicts, options = ([one.to_json() for one in found] for found in (self.verdicts, self.options))
        return {"answer": self.headline, "verdicts": verdicts, **own, "options": options}

    def table(self) -> Table:
        """One row an option. A column is added here."""
        columns = dict(zip(("name", "ships"), text("shipped", "best at"), strict=True))
        columns["fitted_for"] = Column("fitted for", digits=1, unit="x")
        columns["accuracy"] = Column("accuracy", factor=100, better="up")
        columns["against_full"] = Column("less full depth", "text")
        columns |= {f"speed_{unit}": Column(head.removeprefix("seconds "), unit="x") for unit, head in COSTS.items()}
        columns |= {f"against_{unit}": Column(f"less plain, equal {head}", "text") for unit, head in COSTS.items()}
        columns["training"] = Column("training s", digits=0)
        records = []
        for one in self.options:
            mean, error = mean_and_error(one.right.mean(1).tolist())
            record: dict[str, Any] = {"name": one.name, "fitted_for": one.fitted_for}
            record["ships"] = ", ".join(f"{verdict.speed:g}x" for verdict in self.verdicts if verdict.ship is one)
            record["accuracy"] = Estimate(mean, error if self.seeds > 1 else None)
            record["against_full"] = None if one.against_full is None else shown(one.against_full)
            record |= {f"speed_{unit}": value for unit, value in {LAYERS: one.layer_speedup, **one.measured}.items()}
            record |= {f"against_{unit}": shown(found) for unit, found in one.against_plain.items()}
            record["training"] = self.training_seconds.get(EXITS if one.kind == "exits" else one.name)
            records.append(record)
        table = Table.of_records(records, columns, f"accuracy and speed on {self.judged_on}, {self.samples} samples")
        seeds = f"mean of {self.seeds} seeds ± standard error" if self.seeds > 1 else "one seed"
        table.notes = [
            f"{seeds}; thresholds and choices from {self.calibrated_on}; speed-ups over the plain network of full "
            "depth; differences paired, in points, tested over samples" + (" and seeds" if self.seeds > 1 else ""),
            *([f"measured on {self.machine['device']}, {self.machine['threads']} threads"] if self.machine else []),
            *self.advice(),
            *(verdict.sentence for verdict in self.verdicts),
            self.headline,
        ]
        return table

    def advice(self) -> list[str]:
        """What depth and exits pay, from held-out data."""
        lines = []
        if "depth" in self.choice:
            lines.append(
                f"depth that is enough: {layers_text(self.choice['depth'])}, the smallest plain network within one "
                "standard error of the best on held-out data"
            )
        if "exits" in self.choice:
            layers = ", ".join(map(str, self.choice["exits"]))
            lines.append(f"exits: of this network's, those at layers {layers} have the largest area on held-out data")
        return lines


def shown(found: Difference) -> str:
    """In points, with p."""
    return f"{100 * found.difference:+.2f}" + ("" if found.p_value is None else f" (p {found.p_value:.3f})")


def trade_off(result: WorthIt, networks: Networks) -> Any:
    """Accuracy against layer speed-up: plain networks joined by their mixtures, cascades and rules swept."""
    full = next(one for one in result.options if one.members == (networks.full,))
    label = f"accuracy on {result.judged_on} (%)"
    panel = SpeedPanel(label, full.accuracy, farthest=FARTHEST, reference=full.name)
    for look, family in enumerate(dict.fromkeys(one.family for one in result.options)):
        own = [one for one in result.options if one.family == family]
        is_plain = own[0].kind == "plain"
        line = mixed(own if full in own else [full, *own]) if is_plain else swept(own[0], networks)
        dots = [one.layer_speedup for one in own], [one.accuracy for one in own]
        panel.series.append(Series(family, look, line, dots))
    return speed_plot([panel])


def swept(one: Option, networks: Networks) -> Points | None:
    """The mean curve over seeds of a rule with a score, one threshold for all exits, between the speeds it reaches."""
    if any(fitted.policy.score_key() is None for fitted in one.fitted):
        return None
    seeds = networks.exits if one.kind == "exits" else networks.cascade(Alternative(one.members, is_cascade=True))
    pairs = [(fitted.policy, traces.reported) for fitted, traces in zip(one.fitted, seeds, strict=True)]
    tables = [replace(policy.scores(trace), exit_costs=trace.costs_under(policy)) for policy, trace in pairs]
    curve = joined([threshold_curve(table).scaled(networks.depth / table.full_cost) for table in tables], np.mean)
    return None if curve is None else (curve.speedup, curve.accuracy)


def mixed(plain: list[Option]) -> Points:
    """The mean curve over seeds of plain networks, the deepest first, that share the samples."""
    accuracy, speeds = (np.array([getattr(one, name) for one in plain]) for name in ("accuracy", "layer_speedup"))
    return Curve(accuracy, speeds, plain).line()
