"""The outcomes of many settings of a policy on a score table, counted in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.common.known_labels import known_labels
from beem_plugin.exits.score_table import ScoreTable

MAX_CELLS = 400
"""With more pairs of label and prediction than this, a sum over samples for each pair costs more than it saves."""


@dataclass
class Outcome:
    """The counts that metrics and speed-ups are computed from; a cell is a known label and a prediction."""

    exit_histogram: list[int]  # samples by exit
    labels: np.ndarray  # (cells,) int64, of a regression float64
    predictions: np.ndarray
    counts: np.ndarray  # (cells,) int64, samples of the cell, above 0


def outcome_of(exits: Tensor, predictions: Tensor, labels: Tensor, num_exits: int) -> Outcome:
    """The outcome of decisions: `(samples,)` 1-based exits, predictions, and labels, some of them unknown."""
    known = known_labels(labels).numpy()
    pairs = np.stack([labels.numpy()[known], predictions.numpy()[known]])
    cells, counts = np.unique(pairs, axis=1, return_counts=True)
    return Outcome(np.bincount(exits.numpy() - 1, minlength=num_exits).tolist(), cells[0], cells[1], counts)


def outcomes_of(table: ScoreTable, limits: np.ndarray) -> Iterator[Outcome]:
    """
    The outcomes of settings that compare the same scores with different limits, `(settings, exits - 1)`, oriented,
    `inf` for never. Samples without a label count in the histograms only.
    """
    table = replace(table, scores=table.scores.masked_fill(table.scores.isnan(), -torch.inf))  # NaN passes no limit
    if table.is_regression:  # its values are too many for cells of a table
        for setting in limits:
            exits = table.exits(setting.tolist())
            yield outcome_of(exits, table.predictions_at(exits), table.labels, table.num_exits)
        return
    labels, predictions = table.labels.numpy(), table.predictions.numpy()
    known = labels >= 0
    width = int(predictions.max(initial=0)) + 1
    pairs = labels[known, None] * width + predictions[known]
    codes, numbers = np.unique(pairs, return_inverse=True)
    cells = np.full(predictions.shape, len(codes), dtype=np.int64)  # unknown labels in a last cell
    cells[known] = numbers.reshape(pairs.shape)
    shared = limits.shape[1] > 0 and bool((limits == limits[:, :1]).all())
    count = _along_path if shared and len(codes) <= MAX_CELLS else _one_by_one
    for histogram, counts in count(table, cells, len(codes), limits):
        found = np.flatnonzero(counts[:-1])
        yield Outcome(histogram.tolist(), codes[found] // width, codes[found] % width, counts[found])


def _along_path(
    table: ScoreTable, cells: np.ndarray, last: int, limits: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Histograms, and samples by cell, of settings with one limit for all exits."""
    path = ThresholdPath(table)
    points = path.point_of(limits[:, 0])
    exits = np.broadcast_to(np.arange(table.num_exits), cells.shape)
    by_exit, by_cell = (
        np.stack([path.sums((numbers == one).astype(np.int64))[points] for one in range(count)], axis=1)
        for numbers, count in ((exits, table.num_exits), (cells, last + 1))
    )
    yield from zip(by_exit, by_cell, strict=True)


def _one_by_one(
    table: ScoreTable, cells: np.ndarray, last: int, limits: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    # One row per exit, from the last to the first, so that an earlier exit overwrites. Exit and cell are one
    # number, written once.
    width = last + 1
    kind = np.int32 if table.num_exits * width < 2**31 else np.int64
    scores = np.ascontiguousarray(table.scores[:, :-1].double().numpy().T)
    codes = (cells.T + width * np.arange(table.num_exits)[:, None]).astype(kind, order="C")
    for setting in limits:
        code = codes[-1].copy()
        for column in range(len(scores) - 1, -1, -1):
            limit = setting[column]
            passes = scores[column] > limit if table.strict else scores[column] >= limit
            np.copyto(code, codes[column], where=passes)
        counts = np.bincount(code, minlength=table.num_exits * width).reshape(table.num_exits, width)
        yield counts.sum(1), counts.sum(0)
