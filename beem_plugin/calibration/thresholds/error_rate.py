"""One threshold per exit, from the error rate of the samples that exit there."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdFit, ThresholdGrid, ThresholdStrategy

COUNTINGS = ("sequential", "marginal")
CONSTRAINTS = ("final_error", "same_samples")
STATISTICS = ("score", "confidence")


@ThresholdStrategy.register("error_rate")
@dataclass(eq=False)
class ErrorRate(ThresholdStrategy):
    """
    The paper's solver (BEEM, section 3.3, Eq. 4): at each exit t the smallest threshold at which the exiting samples
    have an error rate q_t no larger than p, the error rate of the last exit.

    This does not bound the error of the whole model by that of its last exit, as the paper concludes: p is the last
    exit's error on *all* samples, and those that exit early are easier. The constraint `"same_samples"` does, on the
    calibration data (sequential counting, no slack).

    Registered as a `ThresholdStrategy` with name "error_rate".

    # Parameters

    grid : `list` or `str` or `int`, optional (default = `[0.5, 1.0, ..., 5.0, "never"]` for BEEM, else `"observed"`)
        Candidate thresholds in the policy's own unit. `"observed"` takes every score observed at the exit; an
        integer k takes k quantiles of them. The paper's last entry, L, is written "never": with cost weights a score
        can reach L.
    counting : `str`, optional (default = `"sequential"`)
        `"sequential"` counts at each exit the samples that have not exited before (the paper's words); `"marginal"`
        counts all samples at every exit (the paper's formula).
    constraint : `str`, optional (default = `"final_error"`)
        `"final_error"`: q_t <= p as printed. `"same_samples"`: as many errors as the last exit makes on the same
        samples, or fewer.
    min_support : `int`, optional (default = `10`)
        Calibration samples that must pass a threshold, at least.
    monotone : `bool`, optional (default = `False`)
        If true, a threshold counts only if every larger candidate with enough support satisfies the constraint, too.
    slack : `float`, optional (default = `0.0`)
        Added to the allowed error rate.
    error : `float`, optional (default = the last exit's error on the calibration data)
        p as a fixed number; only with the constraint `"final_error"`.
    statistic : `str`, optional (default = `"score"`)
        What is compared with the threshold while counting: the policy's score, or `"confidence"`, the exit's largest
        probability, as in the paper's formula (its grid of thresholds only makes sense for the score).
    tolerance : `float`, optional (default = `None`)
        For a regression: a value farther than this from the label counts as an error.
    """

    grid: list | str | int | None = None
    counting: str = "sequential"
    constraint: str = "final_error"
    min_support: int = 10
    monotone: bool = False
    slack: float = 0.0
    error: float | None = None
    statistic: str = "score"
    tolerance: float | None = None

    def __post_init__(self) -> None:
        check_choice("thresholds.counting", self.counting, COUNTINGS)
        check_choice("thresholds.constraint", self.constraint, CONSTRAINTS)
        check_choice("thresholds.statistic", self.statistic, STATISTICS)
        check_number("thresholds.min_support", self.min_support, 1)
        check_number("thresholds.error", self.error, high=1)
        check_number("thresholds.tolerance", self.tolerance)
        if self.error is not None and self.constraint != "final_error":
            raise ConfigurationError('thresholds.error: only with constraint "final_error"')
        self.candidates = ThresholdGrid(self.grid, "error_rate").candidates

    def fit(self, table: ScoreTable) -> ThresholdFit:
        table.require_labels("error_rate")
        if self.statistic == "confidence" and not table.higher_is_more_confident:
            raise ConfigurationError('thresholds.statistic: "confidence" needs a policy with higher_is_more_confident')
        table = replace(table, tolerance=self.tolerance)
        wrong = table.wrong
        final_error = float(wrong[:, -1].double().mean())
        allowed = final_error if self.error is None else self.error
        scores = table.scores if self.statistic == "score" else table.confidences
        remaining = torch.ones(len(table), dtype=torch.bool)
        thresholds: list[float] = []
        for column in range(table.num_exits - 1):
            counted = remaining if self.counting == "sequential" else torch.ones_like(remaining)
            threshold = self._solve(table, scores[:, column], counted, wrong[:, column], wrong[:, -1], allowed)
            thresholds.append(threshold)
            remaining = remaining & ~table.passes(table.scores[:, column], threshold)
        return ThresholdFit(thresholds, details={"final_error": final_error, "allowed_error": allowed + self.slack})

    def _solve(
        self, table: ScoreTable, scores: Tensor, counted: Tensor, wrong: Tensor, final_wrong: Tensor, allowed: float
    ) -> float:
        """The smallest oriented threshold whose exiting samples satisfy the constraint; `inf` if there is none."""
        scores, order = scores[counted].sort(descending=True)
        errors = cumulated(wrong[counted][order])
        final_errors = cumulated(final_wrong[counted][order])
        # From never down: a constraint that must hold for all larger thresholds is a prefix of this list.
        candidates = torch.tensor(self.candidates(table, scores)[::-1], dtype=scores.dtype)
        samples = torch.searchsorted(-scores, -candidates, right=not table.strict)
        bound = allowed * samples if self.constraint == "final_error" else final_errors[samples]
        # Rates are compared as counts, exact where q = p.
        holds = errors[samples] <= bound + self.slack * samples + 1e-9
        supported = samples >= self.min_support
        if self.monotone:
            holds &= (supported & ~holds).cumsum(0) == 0
        found = (holds & supported).nonzero().flatten()
        return float(candidates[found[-1]]) if len(found) else math.inf


def cumulated(counted: Tensor) -> Tensor:
    """`(samples + 1,)`: how many of the first k are true, for k from 0."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), counted.to(torch.int64).cumsum(0)])
