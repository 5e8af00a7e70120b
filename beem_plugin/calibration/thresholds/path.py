"""All decisions of one threshold for all exits, from never to always, by cumulative sums."""

import math
from collections.abc import Iterator

import numpy as np

from beem_plugin.exits.score_table import ScoreTable


class ThresholdPath:
    """
    The decisions under one threshold for all exits, as the threshold falls from never to the smallest score seen.

    As the threshold falls, a sample's exit moves forward through the *records* of its scores: the exits whose score is
    larger than all earlier ones. So any sum over samples, at every threshold, is a cumulative sum over these events.

    `values` are `(points,)` oriented scores, falling, from `inf`, never: point k is the decision under any threshold
    that the scores >= `values[k]` pass and the smaller ones do not.
    """

    def __init__(self, table: ScoreTable) -> None:
        scores = table.scores[:, :-1].double().numpy()
        samples, self.early = scores.shape
        self.strict = table.strict
        best = np.maximum.accumulate(scores, axis=1) if self.early else scores
        earlier = np.concatenate([np.full((samples, 1), -math.inf), best], axis=1)[:, : self.early]
        self.record = scores > earlier  # a score of -inf (no exit allowed) is no record
        following = np.empty(scores.shape, dtype=np.int64)
        later = np.full(samples, self.early, dtype=np.int64)
        for column in range(self.early - 1, -1, -1):
            following[:, column] = later
            later = np.where(self.record[:, column], column, later)
        rows, columns = np.nonzero(self.record)
        order = np.argsort(-scores[rows, columns], kind="stable")
        self._rows, self._to = rows[order], columns[order]
        self._from = following[self._rows, self._to]
        ordered = scores[self._rows, self._to]
        # The last event of each group of equal scores.
        self._ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(ordered) else np.empty(0, int)
        self.values = np.concatenate([[math.inf], ordered[self._ends]])

    def __len__(self) -> int:
        return len(self.values)

    def sums(self, per_exit: np.ndarray) -> np.ndarray:
        """`(points,)`: the sum over samples of `per_exit[sample, its exit]`, a `(samples, exits)` array."""
        steps = per_exit[self._rows, self._to] - per_exit[self._rows, self._from]
        total = per_exit[:, -1].sum()
        return np.concatenate([[total], total + np.cumsum(steps)[self._ends]])

    def changes(self, per_exit: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """`(point, per_exit[sample, its exit])`, one array changed in place, of each point with another sum."""
        current = per_exit[:, -1].copy()
        yield 0, current
        new = per_exit[self._rows, self._to]
        differs = new != per_exit[self._rows, self._from]
        group = np.searchsorted(self._ends, np.arange(len(self._rows)))
        for point in np.unique(group[differs]).tolist():
            # A sample has at most one record per point: no write collides.
            span = slice(self._ends[point - 1] + 1 if point else 0, self._ends[point] + 1)
            current[self._rows[span]] = new[span]
            yield point + 1, current

    def point_of(self, thresholds: np.ndarray) -> np.ndarray:
        """The point of each oriented threshold."""
        passed = np.searchsorted(-self.values[1:], -thresholds, side="left" if self.strict else "right")
        return np.asarray(passed, dtype=np.int64)

    def threshold(self, point: int) -> float:
        """The oriented threshold of a point: half way to the next score, so that rounding does not decide."""
        if point == 0:
            return math.inf
        following = float(self.values[point + 1]) if point + 1 < len(self) else None
        return cut(float(self.values[point]), following, self.strict)

    def thresholds(self, point: int) -> np.ndarray:
        """`(exits - 1,)`: `threshold` for every exit."""
        return np.full(self.early, self.threshold(point))

    def running_maximum(self, per_exit: np.ndarray) -> np.ndarray:
        """The smallest numbers from `per_exit` on that only rise as the threshold falls."""
        result = per_exit.copy()
        current = per_exit[:, -1]
        for column in range(per_exit.shape[1] - 2, -1, -1):
            current = np.where(self.record[:, column], np.maximum(current, per_exit[:, column]), current)
            result[:, column] = current
        return result

    def sums_of_maxima(self, per_exit: np.ndarray) -> np.ndarray:
        """`sums`, with each sample's number replaced by its largest at any higher threshold."""
        return self.sums(self.running_maximum(per_exit))


def cut(upper: float, lower: float | None, strict: bool) -> float:
    """A threshold half way between `upper`, which passes, and the smaller `lower`, or just below `upper`."""
    if lower is None or not math.isfinite(lower):
        return upper - max(abs(upper), 1.0) * 1e-6
    middle = lower + (upper - lower) / 2
    # Between neighbouring floats there is no half way, and which end serves depends on the comparison.
    if strict:
        return middle if middle < upper else lower
    return middle if middle > lower else upper
