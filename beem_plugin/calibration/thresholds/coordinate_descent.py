"""Thresholds of all exits optimised together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from beem_plugin.calibration.thresholds.path import cut
from beem_plugin.exits.score_table import ScoreTable

MAX_SWEEPS = 50


class CoordinateDescent:
    """
    Minimises mean loss + multiplier * mean cost over one threshold an exit.

    With all other thresholds fixed, the best threshold of one exit is found exactly: for each sample that reaches the
    exit, in order of the scores, the difference between exiting here and at its later exit is known, so the objective
    at every threshold is a cumulative sum. Exits are visited from the last to the first until
    nothing improves; the objective never rises, so this ends. Dynamic programming would find the optimum in one pass
    only if the samples that reach an exit did not depend on the earlier thresholds, and they do: their scores at
    different exits are those of the same sample. The optimum found is a local one; several starts are tried.

    # Parameters

    table : `ScoreTable`
    loss : `ndarray`
        `(samples, exits)` the loss of exiting there, such as 0/1 errors.
    cost : `ndarray`
        `(exits,)` the cost of running up to there, such as layers.
    levels : `int`, optional (default = `None`)
        Candidate thresholds per exit: this number of quantiles of the observed scores, and never. Fewer overfit less.
        By default every observed score is a candidate.
    """

    def __init__(self, table: ScoreTable, loss: np.ndarray, cost: np.ndarray, levels: int | None = None) -> None:
        self.scores = table.scores[:, :-1].double().numpy()
        self.strict = table.strict
        self.loss = loss
        self.cost = cost
        self._order: list[np.ndarray] = []
        self._taken: list[np.ndarray] = []  # number of sorted samples that pass each candidate, 0 first
        self._values: list[np.ndarray] = []  # the candidates, never first
        for column in range(self.scores.shape[1]):
            scores = self.scores[:, column]
            order = np.argsort(-scores, kind="stable")
            taken, values = candidates(scores[order], levels, self.strict)
            self._order.append(order)
            self._taken.append(taken)
            self._values.append(values)

    def exits(self, thresholds: np.ndarray) -> np.ndarray:
        """`(samples,)` the 0-based exit of each sample."""
        return first_passing(self.scores, thresholds, self.strict)

    def means(self, thresholds: np.ndarray) -> tuple[float, float]:
        """Mean loss and mean cost."""
        exits = self.exits(thresholds)
        return float(self.loss[np.arange(len(exits)), exits].mean()), float(self.cost[exits].mean())

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
                offered = totals[self._taken[column]]
                choice = int(offered.argmin())
                now = float(gain[passes[:, column]].sum())
                if offered[choice] < now - 1e-9:
                    thresholds[column] = self._values[column][choice]
                    passes[:, column] = compare(self.scores[:, column], thresholds[column], self.strict)
                    improved = True
                later = np.where(passes[:, column], column, later)
            if not improved:
                break
        return thresholds


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


def first_passing(scores: np.ndarray, thresholds: np.ndarray, strict: bool) -> np.ndarray:
    """`(samples,)` the 0-based exit of each sample under `(exits - 1,)` thresholds; the last exit takes the rest."""
    passes = compare(scores, thresholds, strict)
    passes = np.concatenate([passes, np.ones((len(scores), 1), dtype=bool)], axis=1)
    return np.asarray(passes.argmax(axis=1))


def just_above(table: ScoreTable) -> np.ndarray:
    """`(exits - 1,)` slightly more than the largest score at each exit; 0 where no score is finite."""
    scores = table.scores[:, :-1].double().numpy()
    largest = scores.max(axis=0, initial=-math.inf)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    return np.asarray(largest + 1e-6 * np.maximum(np.abs(largest), 1.0))


def blend(first: np.ndarray, second: np.ndarray, share: float, top: np.ndarray) -> np.ndarray:
    """`share` of the way from `first` to `second`, where never counts as `top` and nothing reaches above it."""
    mixed = (1 - share) * np.minimum(first, top) + share * np.minimum(second, top)
    return np.where((np.isinf(first) & np.isinf(second)) | (mixed >= top), math.inf, mixed)
