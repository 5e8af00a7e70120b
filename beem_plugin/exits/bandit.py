"""A bandit: learns which of several choices gives the largest mean reward."""

import math
from typing import Any

import numpy as np


class Bandit:
    """
    UCB1 (Auer et al. 2002): each arm is played once, then always the one with the largest mean reward + exploration
    sqrt(ln t / plays), the first of a tie.

    A copy shares what was learned with the original, and a pickled bandit starts over: an engine's copy of a policy
    learns with the policy, and what was compiled for it stays valid.
    """

    def __init__(self, arms: int, exploration: float) -> None:
        self.exploration = exploration
        self.plays, self.totals = np.zeros(arms), np.zeros(arms)
        self.arm = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "Bandit":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Bandit, (len(self.plays), self.exploration)

    def credit(self, rewards: np.ndarray) -> None:
        """Takes the `(samples,)` rewards of the present arm, and chooses the next."""
        self.plays[self.arm] += len(rewards)
        self.totals[self.arm] += rewards.sum()
        if (self.plays == 0).any():
            self.arm = int((self.plays == 0).argmax())
        else:
            spread = np.sqrt(math.log(self.plays.sum()) / self.plays)
            self.arm = int(np.argmax(self.totals / self.plays + self.exploration * spread))

    @property
    def means(self) -> np.ndarray:
        """`(arms,)` the mean reward of each arm, 0 of arms that were not played."""
        return np.asarray(self.totals / np.maximum(self.plays, 1))

    @property
    def best(self) -> int:
        """Of the arms that were played most, the one with the largest mean reward."""
        return int(np.argmax(np.where(self.plays == self.plays.max(), self.means, -math.inf)))
