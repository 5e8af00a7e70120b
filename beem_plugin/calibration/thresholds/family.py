"""Sequences of threshold lists, one threshold an exit, from never to permissive."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from beem_plugin.calibration.thresholds.coordinate_descent import CoordinateDescent, PassRates
from beem_plugin.exits.score_table import ScoreTable

MULTIPLIERS = np.geomspace(1e-3, 3.0, 30)
LEVELS = 32
STEPS = 8


class ThresholdFamily:
    """The decisions of a sequence of threshold lists; the methods are those of `ThresholdPath`."""

    def __init__(self, table: ScoreTable, members: list[np.ndarray]) -> None:
        self.members = members
        self.rows = np.arange(len(table))
        self.exits = np.stack([table.exits(member.tolist()).numpy() - 1 for member in members])  # (members, samples)

    def __len__(self) -> int:
        return len(self.members)

    def sums(self, per_exit: np.ndarray) -> np.ndarray:
        return np.asarray(per_exit[self.rows, self.exits].sum(axis=1))

    def sums_of_maxima(self, per_exit: np.ndarray) -> np.ndarray:
        return np.asarray(np.maximum.accumulate(per_exit[self.rows, self.exits], axis=0).sum(axis=1))

    def changes(self, per_exit: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        yield from enumerate(per_exit[self.rows, self.exits])

    def thresholds(self, point: int) -> np.ndarray:
        return self.members[point]


def optimal_family(table: ScoreTable, loss: np.ndarray) -> list[np.ndarray]:
    """
    Lists of `(exits - 1,)` oriented thresholds from never to permissive: optimal for mean loss + multiplier * cost at
    rising multipliers, without dominated ones, in ascending order of loss. Steps between neighbours are added, because
    few samples have few optima.
    """
    cost = np.array(table.costs, dtype=np.float64) / table.full_cost
    descent = CoordinateDescent(table, loss, cost, LEVELS)
    never = np.full(table.num_exits - 1, math.inf)
    members = [never]
    for multiplier in MULTIPLIERS.tolist():
        members.append(descent.best(multiplier, [members[-1], never]))
    by_loss = sorted(((*descent.means(member), number) for number, member in enumerate(members)))
    kept, fastest = [never], math.inf
    for _, mean_cost, number in by_loss:
        if mean_cost < min(fastest, cost[-1]):
            kept.append(members[number])
            fastest = mean_cost
    rates = PassRates(table)
    steps = [step / STEPS for step in range(1, STEPS + 1)]
    return [never, *(rates.between(slow, fast, step) for slow, fast in pairwise(kept) for step in steps)]
