"""The traces of all trained networks, and what plain networks and their cascades reach at a given cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.comparison.plain_networks import cascade_trace, mixture, right_of_last_exit
from beem_plugin.comparison.result import build
from beem_plugin.comparison.trainings.trained import TrainedRun
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.exits.score_table import ScoreTable

CASCADE_RULE = {"type": "max_probability"}


class Traces(NamedTuple):
    """One training: its outputs on the data for fitting and choosing, and on the data that results are reported on."""

    held_out: ExitTrace
    reported: ExitTrace

    @classmethod
    def of(cls, run: TrainedRun, variant: Variant) -> Traces:
        """Of the labelled samples of the data that `variant` is calibrated on and judged on."""
        traces = run.traces(variant)
        for trace in traces:
            if not bool(trace.known.any()):
                raise ConfigurationError(f"{trace.source}: found no sample with a label, allowed: labelled data")
        return cls(*(trace.select(trace.known) for trace in traces))


class Plain(NamedTuple):
    """A plain network: its layers, and whether the one of full depth taught it."""

    layers: int
    distilled: bool = False

    @property
    def name(self) -> str:
        return f"{'distilled' if self.distilled else 'plain'} network of {layers_text(self.layers)}"


def layers_text(layers: int) -> str:
    return f"{layers} layer{'' if layers == 1 else 's'}"


@dataclass(frozen=True)
class Alternative:
    """
    What is shipped in place of exits: one of the plain networks `members` (between two depths a mixture), or with
    `is_cascade` all of them, small to large. The members' depths rise.
    """

    members: tuple[Plain, ...]
    is_cascade: bool = False

    @property
    def name(self) -> str:
        kind = "distilled" if self.members[0].distilled else "plain"
        if self.is_cascade:
            return f"cascade of {kind} networks of {' and '.join(str(member.layers) for member in self.members)} layers"
        return f"{kind} networks"


@dataclass
class Networks:
    """The traces of the network with exits and of plain ones, one entry a seed, of the same samples."""

    depth: int  # layers of the plain network of full depth, which speeds are relative to
    exits: list[Traces]
    plain: dict[Plain, list[Traces]]  # that of full depth among them

    @property
    def full(self) -> Plain:
        return Plain(self.depth)

    def alternatives(self, cascades: Sequence[tuple[int, ...]] | None = None) -> list[Alternative]:
        """Plain networks, those that were distilled, and cascades: all pairs, or those of the depths `cascades`."""
        found = []
        for distilled in (False, True):
            pool = sorted(one for one in self.plain if one.distilled == distilled or one == self.full)
            by_depth = {one.layers: one for one in pool}
            if not any(one.distilled == distilled for one in pool):
                continue
            found.append(Alternative(tuple(pool)))
            wanted = combinations(by_depth, 2) if cascades is None else cascades
            found += [
                Alternative(tuple(by_depth[layers] for layers in depths), is_cascade=True)
                for depths in wanted
                if by_depth.keys() >= set(depths)
            ]
        return list(dict.fromkeys(found))

    def right_at(
        self, alternative: Alternative, cost: float, part: str, costs: Mapping[int, float] | None = None
    ) -> np.ndarray:
        """
        `(seeds, samples)` the probability that the alternative is right at a mean cost a sample on a `part`,
        `"held_out"` or `"reported"`. `costs` are those of plain networks by depth, such as seconds (default: layers).
        """
        own = [member.layers if costs is None else costs[member.layers] for member in alternative.members]
        place = Traces._fields.index(part)
        if alternative.is_cascade:
            rule, traces = {**CASCADE_RULE, "thresholds": "never"}, [both[place] for both in self.cascade(alternative)]
            return np.stack([right_at(build(rule, one).scores(one), np.cumsum(own), cost) for one in traces])
        seeds = zip(*(self.plain[member] for member in alternative.members), strict=True)
        right = [[right_of_last_exit(traces[place]) for traces in members] for members in seeds]
        return np.stack([mixture(own, each.__getitem__, cost) for each in right])

    def cascade(self, alternative: Alternative) -> list[Traces]:
        """The traces of a cascade, one entry a seed."""
        seeds = zip(*(self.plain[member] for member in alternative.members), strict=True)
        return [Traces(*(cascade_trace(part) for part in zip(*members, strict=True))) for members in seeds]


def right_at(table: ScoreTable, costs: Sequence[float] | np.ndarray, cost: float) -> np.ndarray:
    """`mixture` of the settings of one threshold for all exits, the cost of each of which is in `costs`."""
    path = ThresholdPath(table)
    means = path.sums(np.broadcast_to(np.asarray(costs, dtype=np.float64), tuple(table.scores.shape))) / len(table)
    right, samples = (~table.wrong).double().numpy(), np.arange(len(table))

    def at(place: int) -> np.ndarray:
        exits = table.exits(path.thresholds(len(path) - 1 - place).tolist()).numpy()
        return np.asarray(right[samples, exits - 1])

    return mixture(means[::-1], at, cost)
