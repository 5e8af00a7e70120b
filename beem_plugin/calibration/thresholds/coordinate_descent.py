"""Thresholds of all exits optimised together."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from beem_plugin.calibration.thresholds.path import cut
from beem_plugin.exits.score_table import ScoreTable

MAX_SWEEPS = 50
MULTIPLIERS = np.geomspace(1e-3, 3.0, 30)
LEVELS = 32
STEPS = 8


class CoordinateDescent:
    """
    Minimises mean loss + multiplier * mean cost over one threshold an exit. `loss` is `(samples, exits)`, of exiting
    there, `cost` `(exits,)`. Candidates are all observed scores, or `levels` quantiles of them, and never.

    With all other thresholds fixed, the best threshold of one exit is found exactly: for each sample that reaches it,
    in order of the scores, the difference between exiting here and later is known, so the objective at every threshold
    is a cumulative sum. Exits are visited from the last to the first until nothing improves. The optimum is a local
    one, so several starts are tried.
    """

    def __init__(self, table: ScoreTable, loss: np.ndarray, cost: np.ndarray, levels: int | None = None) -> None:
        self.table, self.loss, self.cost = table, loss, cost
        self.scores, self.strict = table.scores[:, :-1].double().numpy(), table.strict
        self._order = np.argsort(-self.scores, axis=0, kind="stable").T
        # For each exit the number of sorted samples that pass each candidate, and the candidates.
        ordered = np.take_along_axis(self.scores.T, self._order, axis=1)
        self._candidates = [candidates(scores, levels, self.strict) for scores in ordered]

    def means(self, thresholds: np.ndarray) -> tuple[float, float]:
        return means(self.table, self.loss, self.cost, thresholds)

    def objective(self, thresholds: np.ndarray, multiplier: float) -> float:
        loss, cost = self.means(thresholds)
        return loss + multiplier * cost

    def best(self, multiplier: float, starts: Sequence[np.ndarray]) -> np.ndarray:
        """The best of the optima reached from `starts`; the first of equally good ones."""
        found = [self.descend(start, multiplier) for start in starts]
        return min(found, key=lambda thresholds: self.objective(thresholds, multiplier))

    def descend(self, start: np.ndarray, multiplier: float) -> np.ndarray:
        """`(exits - 1,)` oriented thresholds, no worse than `start`."""
        thresholds = start.copy()
        value = self.loss + multiplier * self.cost
        samples, early = self.scores.shape
        rows = np.arange(samples)
        for _ in range(MAX_SWEEPS):
            passes = compare(self.scores, thresholds, self.strict)
            left = np.logical_or.accumulate(passes, axis=1)
            later = np.full(samples, early)  # the exit of a sample that stays at this exit and before
            improved = False
            for column in range(early - 1, -1, -1):
                reaches = ~left[:, column - 1] if column else np.ones(samples, dtype=bool)
                gain = np.where(reaches, value[:, column] - value[rows, later], 0.0)
                totals = np.concatenate([[0.0], np.cumsum(gain[self._order[column]])])
                taken, values = self._candidates[column]
                offered = totals[taken]
                choice = int(offered.argmin())
                now = float(gain[passes[:, column]].sum())
                if offered[choice] < now - 1e-9:
                    thresholds[column] = values[choice]
                    passes[:, column] = compare(self.scores[:, column], thresholds[column], self.strict)
                    improved = True
                later = np.where(passes[:, column], column, later)
            if not improved:
                break
        return thresholds


def means(table: ScoreTable, loss: np.ndarray, cost: np.ndarray, thresholds: np.ndarray) -> tuple[float, float]:
    """Mean loss and mean cost, of `(samples, exits)` losses and `(exits,)` costs."""
    exits = table.exits(thresholds.tolist()).numpy() - 1
    return float(loss[np.arange(len(exits)), exits].mean()), float(cost[exits].mean())


def candidates(ordered: np.ndarray, levels: int | None, strict: bool) -> tuple[np.ndarray, np.ndarray]:
    """
    The distinct splits of falling scores into passing and staying ones: the number that pass, and a threshold half way
    between; never first. With `levels`, those nearest to that number of quantiles.
    """
    finite = ordered[np.isfinite(ordered)]
    taken = np.flatnonzero(np.append(finite[1:] != finite[:-1], True)) + 1 if len(finite) else np.empty(0, int)
    if levels is not None and len(taken) > levels:
        wanted = np.linspace(0, len(finite), levels + 1)[1:]
        taken = np.unique(taken[np.searchsorted(taken, wanted - 0.5).clip(max=len(taken) - 1)])
    values = [cut(float(finite[k - 1]), float(finite[k]) if k < len(finite) else None, strict) for k in taken.tolist()]
    return np.concatenate([[0], taken]), np.array([math.inf, *values])


def compare(scores: np.ndarray, thresholds: np.ndarray | float, strict: bool) -> np.ndarray:
    return scores > thresholds if strict else scores >= thresholds


class PassRates:
    """Thresholds by the share of samples that pass them at each exit: shares can be averaged between settings."""

    def __init__(self, table: ScoreTable) -> None:
        self.scores = table.scores[:, :-1].double().numpy()
        self.strict = table.strict
        splits = [candidates(ordered, None, self.strict) for ordered in -np.sort(-self.scores, axis=0).T]
        self._splits = [(taken / max(len(table), 1), values) for taken, values in splits]

    def of(self, thresholds: np.ndarray) -> np.ndarray:
        """`(exits - 1,)` from 0, never, to 1."""
        return np.asarray(compare(self.scores, thresholds, self.strict).mean(axis=0))

    def thresholds(self, rates: np.ndarray) -> np.ndarray:
        """The thresholds with the nearest possible rates."""
        pairs = zip(self._splits, rates, strict=True)
        return np.array([values[np.abs(shares - rate).argmin()] for (shares, values), rate in pairs])

    def between(self, first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
        """The thresholds whose rates are `share` of the way from those of `first` to those of `second`."""
        return self.thresholds((1 - share) * self.of(first) + share * self.of(second))


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
