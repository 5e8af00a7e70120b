"""The base class of policies that learn while predicting, without labels, and the bandit that learns."""

import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policies.wrapped import WrappedPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals, confidence_of
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.trace_interface import Trace

logger = logging.getLogger(__name__)


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


class AdaptingPolicy(WrappedPolicy):
    """
    Another policy whose thresholds a `Bandit` chooses before each batch from the given ones, and rewards without
    labels with C - mu cost: the confidence where a sample exits less the price of the layers, `cost` in parts of
    full depth. A line is logged each time the number of samples has doubled. Loaded policies and replays start
    over. GPU engines run it without generated kernels and captured graphs.
    """

    adapts = True

    def __init__(self, policy: ExitPolicy, mu: float, exploration: float) -> None:
        super().__init__(policy)
        self.adapts = True  # type: ignore[misc]
        if not isinstance(policy, ThresholdPolicy):
            raise ConfigurationError(
                f"policy: found {policy.registered_name}, allowed: one that compares a score with thresholds, such as "
                "max_probability, entropy, beem"
            )
        check_number("mu", mu)
        check_number("exploration", exploration)
        self.policy: ThresholdPolicy = policy
        self.mu = mu
        self.bandit = self.replayed = Bandit(1, exploration)
        """The latter of the latest replay, which leaves what `observe` has learned as it is."""
        self.replayed_cost = 0.0
        """The mean cost of a sample in layers."""
        self.arms: list[list[float]] = []
        """For each arm a threshold an exit but the last, in the inner policy's own unit."""
        self.prices = np.zeros((0, 0))
        """`(arms, exits)` cost in parts of full depth."""

    @property
    def exploration(self) -> float:
        return self.bandit.exploration

    def names(self) -> list[Any]:
        """What the arms are called in reports."""
        raise TypeError(f"{type(self).__name__} does not define names")

    def set_arms(self, arms: list[list[float]], prices: np.ndarray) -> None:
        """`prices`: `(arms, exits)` in layers."""
        if arms != self.arms:  # `bind` is called before every run
            self.arms = arms
            self.bandit = Bandit(len(arms), self.exploration)
        self.prices = prices / self.exit_layers[-1]

    @property
    def needs_all_labels(self) -> bool:
        return True  # for the confidence of the output

    @property
    def is_calibrated(self) -> bool:
        return bool(self.arms) and self.policy.has_parameters

    def step(self, exit_number: int, signals: ExitSignals, state: ExitState) -> tuple[Tensor, ExitState]:
        state = self.policy.update(exit_number, signals, state)
        if exit_number >= self.num_exits or exit_number < self.policy.min_exit:
            return signals.flags(exit_number >= self.num_exits), state
        return self.policy.passes(state["score"], self.arms[self.bandit.arm][exit_number - 1]), state

    def can_leave(self, exit_number: int) -> bool:
        if exit_number >= self.num_exits:
            return True
        offered = {arm[exit_number - 1] for arm in self.arms}
        return exit_number >= self.policy.min_exit and offered != {self.policy.never}

    def needs(self, exit_number: int) -> bool:
        return not self.policy.memoryless or self.can_leave(exit_number)

    def out_of_reach(self, with_ends: bool = True) -> list[str]:
        return []

    def observe(self, exits: Tensor, output: Tensor) -> None:
        before = int(self.bandit.plays.sum())
        self.learn(self.bandit, (exits - 1).numpy(), confidence_of(output).numpy())
        if (before + len(exits)).bit_length() > before.bit_length():
            logger.info("%s", self.summary())

    def learn(self, bandit: Bandit, columns: np.ndarray, confidences: np.ndarray) -> None:
        """Rewards the present arm for samples that left at `columns`, from 0, with `confidences`."""
        bandit.credit(confidences - self.mu * self.prices[bandit.arm][columns])

    def summary(self) -> str:
        names, bandit = self.names(), self.bandit
        played = [(*row, int(plays)) for *row, plays in zip(names, bandit.means, bandit.plays, strict=True) if plays]
        arms = ", ".join(f"{name} {mean:.3f} x {plays}" for name, mean, plays in played)
        return (
            f"{self.registered_name}: after {int(bandit.plays.sum())} samples the best is {names[bandit.best]} "
            f"(mean reward x samples: {arms})"
        )

    def exits_on(self, trace: Trace) -> Tensor | None:
        table, state, confidences = self.policy.score_table(trace), self.policy.start(len(trace), trace.num_exits), []
        for number in range(1, trace.num_exits + 1):
            signals = trace.exit_signals(number)
            state = self.policy.update(number, signals, state)
            confidences.append(confidence_of(self.policy.output(number, signals, state)))
        confident = torch.stack(confidences, 1).numpy()
        offered = np.stack([table.exits([table.orient(limit) for limit in arm]).numpy() - 1 for arm in self.arms], 1)
        self.replayed = bandit = Bandit(len(self.arms), self.exploration)
        exits, self.replayed_cost = np.empty(len(trace), dtype=np.int64), 0.0
        for row in range(len(trace)):
            column = offered[row, bandit.arm]
            self.replayed_cost += self.prices[bandit.arm, column] * self.exit_layers[-1] / len(trace)
            self.learn(bandit, column[None], confident[row, column, None])
            exits[row] = column + 1
        return torch.from_numpy(exits)

    def report(self, trace: Trace) -> CalibrationReport:
        """Of a replay of `trace`, sample by sample."""
        report = trace.report_on(self, weights=self.policy.report_weights())
        plays, rewards = self.replayed.plays.astype(int).tolist(), self.replayed.means.tolist()
        found = {"arms": self.names(), "plays": plays, "mean_reward": rewards, "mean_cost": self.replayed_cost}
        return replace(report, details={**report.details, **found})
