"""Policies that differ only in their limits, and share a table of scores."""

import pickle

from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.trace_interface import Trace


class SharedScores:
    """The part of an `ExitPolicy` that separates scores from limits; by default nothing is separated."""

    def score_key(self) -> bytes | None:
        """
        For policies by which a sample exits at the first exit whose score passes a limit, where the score does not
        depend on the limits: everything that the score depends on. Policies with equal keys share their `scores`, so
        that many of them are replayed in one pass. `None` for other policies, which are replayed one by one.
        """
        return None

    def scores(self, trace: Trace) -> ScoreTable:
        """The scores compared with `limits`, and the predicted labels; only with a `score_key`."""
        raise TypeError(f"{type(self).__name__} does not separate scores from limits")

    def limits(self) -> list[float]:
        """The oriented limits of `scores`, one per exit but the last; `inf` for never."""
        raise TypeError(f"{type(self).__name__} does not separate limits from scores")

    def key_without(self, *names: str) -> bytes | None:
        """The policy's class and attributes but `names`, as a `score_key`; `None` if an attribute is not picklable."""
        attributes = {name: value for name, value in vars(self).items() if name not in names}
        try:
            return pickle.dumps((type(self).__module__, type(self).__qualname__, attributes))
        except Exception:  # attributes of a user's class, such as locks, can raise errors of any type
            return None
