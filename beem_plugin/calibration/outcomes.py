"""The outcomes of many settings of a policy on a score table, counted in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from beem_plugin.common.known_labels import known_labels
from beem_plugin.exits.score_table import ScoreTable

MAX_CELLS = 400
"""With more pairs of label and prediction than this, sorting the samples of each pair costs more than it saves."""


@dataclass
class Outcome:
    """
    The counts that every metric and every speed-up can be computed from.

    # Parameters

    exit_histogram : `list[int]`
        Number of samples by exit.
    labels, predictions, counts : `ndarray`
        `(cells,)` int64: the number of samples with that known label and that prediction, above 0. In a regression
        labels and predictions are float64.
    """

    exit_histogram: list[int]
    labels: np.ndarray
    predictions: np.ndarray
    counts: np.ndarray


def outcome_of(exits: Tensor, predictions: Tensor, labels: Tensor, num_exits: int) -> Outcome:
    """The outcome of decisions: `(samples,)` 1-based exits, predictions, and labels, some of them unknown."""
    known = known_labels(labels).numpy()
    pairs = np.stack([labels.numpy()[known], predictions.numpy()[known]])
    cells, counts = np.unique(pairs, axis=1, return_counts=True)
    return Outcome(np.bincount(exits.numpy() - 1, minlength=num_exits).tolist(), cells[0], cells[1], counts)


class TableOutcomes:
    """
    The outcomes of settings that compare the same scores with different limits.

    # Parameters

    table : `ScoreTable`
        Samples without a label count in the histograms only.
    """

    def __init__(self, table: ScoreTable) -> None:
        scores = table.scores[:, :-1].double().numpy()
        self.scores = np.where(np.isnan(scores), -np.inf, scores)  # NaN passes no limit
        self.strict = table.strict
        self.num_exits = table.num_exits
        labels, predictions = table.labels.numpy(), table.predictions.numpy()
        known = labels >= 0
        width = int(predictions.max(initial=0)) + 1
        pairs = labels[known, None] * width + predictions[known]
        codes, numbers = np.unique(pairs, return_inverse=True)
        self.labels, self.predictions = codes // width, codes % width
        self.cells = np.full(predictions.shape, len(codes), dtype=np.int64)  # unknown labels in a last cell
        self.cells[known] = numbers.reshape(pairs.shape)

    def of(self, limits: np.ndarray) -> Iterator[Outcome]:
        """
        # Parameters

        limits : `ndarray`
            `(settings, exits - 1)` oriented; `inf` for never.
        """
        same = (limits == limits[:, :1]).all(axis=1) if limits.shape[1] else np.ones(len(limits), dtype=bool)
        if not same.all() or len(self.labels) > MAX_CELLS or not limits.shape[1]:
            yield from self._one_by_one(limits)
            return
        histograms, counts = self._all_at_once(limits[:, 0])
        for histogram, cells in zip(histograms, counts, strict=True):
            yield self._outcome(histogram, cells)

    def _all_at_once(self, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        One limit for all exits. A sample has exited by an exit if the largest of its scores so far passes, so the
        number of these samples is found in the sorted largest scores.
        """
        samples, early = self.scores.shape
        best = np.maximum.accumulate(self.scores, axis=1)
        # All remaining samples exit at the last exit.
        best = np.concatenate([best, np.full((samples, 1), np.inf)], axis=1)
        histograms = np.empty((len(limits), early + 1), dtype=np.int64)
        counts = np.zeros((len(limits), len(self.labels) + 1), dtype=np.int64)
        for column in range(early + 1):
            order = np.argsort(self.cells[:, column], kind="stable")
            bounds = np.searchsorted(self.cells[order, column], np.arange(len(self.labels) + 2))
            exiting = np.zeros(len(limits), dtype=np.int64)
            for cell in range(len(self.labels) + 1):
                rows = order[bounds[cell] : bounds[cell + 1]]
                if not len(rows):
                    continue
                reached = len(rows) if column == 0 else self._staying(best[rows, column - 1], limits)
                stays = self._staying(best[rows, column], limits) if column < early else 0
                counts[:, cell] += reached - stays
                exiting += reached - stays
            histograms[:, column] = exiting
        return histograms, counts

    def _staying(self, scores: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """`(settings,)` the number of `scores` that do not pass each limit."""
        return np.searchsorted(np.sort(scores), limits, side="right" if self.strict else "left")

    def _one_by_one(self, limits: np.ndarray) -> Iterator[Outcome]:
        # One row per exit, from the last to the first, so that an earlier exit overwrites. Exit and cell are one
        # number, written once.
        width = len(self.labels) + 1
        kind = np.int32 if self.num_exits * width < 2**31 else np.int64
        scores = np.ascontiguousarray(self.scores.T)
        codes = (self.cells.T + width * np.arange(self.num_exits)[:, None]).astype(kind, order="C")
        for setting in limits:
            code = codes[-1].copy()
            for column in range(len(scores) - 1, -1, -1):
                limit = setting[column]
                passes = scores[column] > limit if self.strict else scores[column] >= limit
                np.copyto(code, codes[column], where=passes)
            counts = np.bincount(code, minlength=self.num_exits * width).reshape(self.num_exits, width)
            yield self._outcome(counts.sum(1), counts.sum(0))

    def _outcome(self, histogram: np.ndarray, counts: np.ndarray) -> Outcome:
        found = np.flatnonzero(counts[:-1])
        return Outcome(histogram.tolist(), self.labels[found], self.predictions[found], counts[found])


def outcomes_of(table: ScoreTable, limits: np.ndarray) -> Iterator[Outcome]:
    """
    The outcomes under each row of `limits`, `(settings, exits - 1)` oriented with `inf` for never. The values of a
    regression are too many for cells of a table: one setting after the other.
    """
    if not table.is_regression:
        yield from TableOutcomes(table).of(limits)
        return
    for setting in limits:
        exits = table.exits(setting.tolist())
        yield outcome_of(exits, table.predictions_at(exits), table.labels, table.num_exits)
