"""One threshold for all exits: by the task's metric, or learned online, without labels, by a bandit."""

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from beem_plugin.calibration.speed import depth_summary
from beem_plugin.common.errors import check_choice, check_number
from beem_plugin.common.metrics import METRICS, check_metric, main_score
from beem_plugin.exits.policies.adapting import Bandit
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdFit, ThresholdGrid, ThresholdStrategy

MAX_CANDIDATES = 200


@ThresholdStrategy.register("best_on_validation")
@dataclass(eq=False)
class BestOnValidation(ThresholdStrategy):
    """
    The paper's classical method (BEEM, section 4.1): one threshold for all exits, the one of a grid with the best
    metric on the calibration data. Of several equally good ones the most permissive, so the fastest, is taken.

    Registered as a `ThresholdStrategy` with name "best_on_validation".

    # Parameters

    grid : `list` or `str` or `int`, optional (default = `[0.3, 0.6, 0.9, 1.2, 1.5]` for BEEM, else `"observed"`)
        Thresholds in the policy's own unit; `"never"` is allowed. BEEM's default is the paper's, made for BEEM-C.
        `"observed"` takes up to 200 quantiles of the scores of all exits, and never; an integer k takes k of them.
    metric : `str`, optional (default = the task's own)
        A name of `beem_plugin.common.metrics`.
    """

    serves_regression = True

    grid: list | str | int | None = None
    metric: str | None = None

    def __post_init__(self) -> None:
        if self.metric is not None:
            check_choice("thresholds.metric", self.metric, METRICS)
        self.candidates = ThresholdGrid(self.grid, "best_on_validation").candidates

    def check_task(self, num_labels: int) -> None:
        super().check_task(num_labels)
        if self.metric is not None:
            check_metric("thresholds.metric", self.metric, num_labels == 1)

    def fit(self, table: ScoreTable) -> ThresholdFit:
        table.require_labels("best_on_validation")
        metric = self.metric or table.metric
        labels = table.labels.numpy()
        candidates = []
        for threshold in self.candidates(table, table.scores[:, :-1].flatten(), MAX_CANDIDATES):
            exits = table.exits([threshold] * (table.num_exits - 1))
            value = main_score(metric, labels, table.predictions_at(exits).numpy())
            speedup = depth_summary(exits, table.exit_layers, table.costs)["layer_speedup"]
            candidates.append((value, threshold, speedup))
        # max() keeps the first of several equal ones, and the grid runs from the most permissive on.
        _, best, _ = max(candidates, key=lambda candidate: candidate[0])
        shown = [
            {"threshold": table.orient(threshold), metric: value, "layer_speedup": speedup}
            for value, threshold, speedup in candidates
            if threshold != math.inf
        ]
        return ThresholdFit([best] * (table.num_exits - 1), details={"candidates": shown})


@ThresholdStrategy.register("ucb")
@dataclass(eq=False)
class UpperConfidenceBound(ThresholdStrategy):
    """
    CeeBERT (Bajpai and Hanawal 2024) and UEE-UCB: one threshold for all exits, an arm of a bandit for each candidate.
    Samples come in the order of the trace; each is given the arm with the largest

        mean reward + exploration sqrt(ln t / plays),

    exits at i by it, and the reward, which needs no label, is what confidence gained less what the layers cost,

        max_{j<=i} C_j - C_1 - mu cost_i / cost_L.

    Only what the sample computed up to its exit counts, so that the same happens on a stream. The threshold is the arm
    with the best mean reward, of the arms that were played most.

    Registered as a `ThresholdStrategy` with name "ucb".

    # Parameters

    grid : `list` or `str` or `int`, optional (default = `10`)
        Candidates in the policy's own unit, or as many quantiles of the scores; see `BestOnValidation`.
    mu : `float`, optional (default = `0.1`)
        The price of full depth, in confidence.
    exploration : `float`, optional (default = `1.0`)
    """

    grid: list | str | int = 10
    mu: float = 0.1
    exploration: float = 1.0

    def __post_init__(self) -> None:
        check_number("thresholds.mu", self.mu)
        check_number("thresholds.exploration", self.exploration)
        self.candidates = ThresholdGrid(self.grid).candidates

    def fit(self, table: ScoreTable) -> ThresholdFit:
        table.require_samples("ucb")
        arms = self.candidates(table, table.scores[:, :-1].flatten())
        rewards = self.rewards(table, arms)
        bandit = Bandit(len(arms), self.exploration)
        for row in rewards:
            bandit.credit(row[bandit.arm, None])
        known = {
            "arms": [table.orient(arm) if math.isfinite(arm) else "never" for arm in arms],
            "plays": bandit.plays.astype(int).tolist(),
            "mean_reward": bandit.means.tolist(),
            "regret": float(rewards.sum(0).max() - bandit.totals.sum()),
        }
        few = len(table) < 10 * len(arms)
        warnings = [f"ucb: {len(table)} samples for {len(arms)} candidates are few: use a smaller grid"] if few else []
        return ThresholdFit([arms[bandit.best]] * (table.num_exits - 1), warnings, known)

    def rewards(self, table: ScoreTable, arms: list[float]) -> np.ndarray:
        """`(samples, arms)` the reward that each sample would give with each candidate."""
        gain = table.confidences.cummax(1).values - table.confidences[:, :1]
        cost = table.confidences.new_tensor(table.costs) / table.full_cost
        value: Tensor = gain - self.mu * cost
        exits = [table.exits([arm] * (table.num_exits - 1)) for arm in arms]
        return np.stack([value.gather(1, (exit - 1).unsqueeze(1)).squeeze(1).double().numpy() for exit in exits], 1)
