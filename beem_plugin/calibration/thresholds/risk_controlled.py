"""Thresholds whose risk on new data is bounded, with a stated probability."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from beem_plugin.calibration.thresholds import bounds
from beem_plugin.calibration.thresholds.coordinate_descent import ThresholdFamily, optimal_family
from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdFit, ThresholdStrategy

RISKS = ("accuracy_loss", "disagreement", "error")
METHODS = ("ltt_binomial", "ltt_hoeffding_bentkus", "ucb", "crc")
UCB_BOUNDS = ("betting", "hoeffding_bentkus")


@ThresholdStrategy.register("risk_controlled")
@dataclass(eq=False)
class RiskControlled(ThresholdStrategy):
    """
    The most permissive thresholds whose mean risk on new data of the same kind is at most `epsilon`: with probability
    1 - `delta` over the draw of the calibration data (Learn then Test, Angelopoulos et al. 2021; upper confidence
    bounds, Bates et al. 2021), or in expectation (conformal risk control, Angelopoulos et al. 2024). For early exits:
    Schuster et al. 2022 (CALM), Jazbec et al. 2024.

    **One threshold** (`per_exit` false). Thresholds are tested one after the other, from never towards permissive, and
    the last one before the first that fails is taken. Each test has level delta, and so has the whole sequence: an
    error requires that the first threshold whose true risk exceeds epsilon passes its test. All thresholds that make a
    difference are tested, so that the grid costs no confidence; the risk need not be monotone in the threshold.

    **One threshold an exit** (`per_exit` true). A random half of the data (`shape_fraction`) gives a sequence of
    threshold lists, from never to permissive: the lists that are optimal for risk + multiplier * cost, in the order of
    their risk there. The other half tests the sequence as above ("Pareto testing", Laufer-Goldshtein et al. 2023). With
    a few hundred samples the single threshold, which is tested on all of them, is usually faster.

    Registered as a `ThresholdStrategy` with name "risk_controlled".

    # Parameters

    epsilon : `float`, optional (default = `0.02`)
        The allowed risk, above 0 and below 1; 0.01 is one point of accuracy.
    risk : `str`, optional (default = `"accuracy_loss"`)
        `"accuracy_loss"`: wrong at the sample's exit but right at the last. `"disagreement"`: another label than the
        last exit's; needs no labels. `"error"`: a wrong label; epsilon must then be above the last exit's error.
    delta : `float`, optional (default = `0.1`)
        Not used by `"crc"`.
    method : `str`, optional (default = `"ltt_binomial"`)
        `"ltt_binomial"`, exact for 0/1 risks; `"ltt_hoeffding_bentkus"`; `"ucb"`: an upper confidence bound at the
        threshold and at all more conservative ones must be at most epsilon; `"crc"`: in expectation, with each sample's
        loss replaced by its largest at any more conservative threshold, as the theorem needs monotone losses.
    bound : `str`, optional (default = `"betting"`)
        The upper bound of `"ucb"`: `"betting"` (Waudby-Smith and Ramdas) or `"hoeffding_bentkus"`.
    clip : `bool`, optional (default = `True`)
        Whether a sample that only the early exit gets right counts 0 (true) or -1 (false; only `"accuracy_loss"`, and
        not with `"ltt_binomial"`). Clipped tests need fewer samples.
    per_exit : `bool`, optional (default = `False`)
    shape_fraction : `float`, optional (default = `0.5`)
    seed : `int`, optional (default = `0`)
        Seed of the split and of the order of the samples in the betting bound.
    tolerance : `float`, optional (default = `None`)
        For a regression: a value farther than this from the label, or for `"disagreement"` from the last exit's, counts
        as wrong. CATs (Schuster et al. 2021) takes `"disagreement"` with 0.5 on STS-B.
    """

    epsilon: float = 0.02
    risk: str = "accuracy_loss"
    delta: float = 0.1
    method: str = "ltt_binomial"
    bound: str = "betting"
    clip: bool = True
    per_exit: bool = False
    shape_fraction: float = 0.5
    seed: int = 0
    tolerance: float | None = None

    def __post_init__(self) -> None:
        for key in ("epsilon", "delta", "shape_fraction"):
            check_number(f"thresholds.{key}", getattr(self, key), high=1, open_low=True, open_high=True)
        check_choice("thresholds.method", self.method, METHODS)
        check_choice("thresholds.bound", self.bound, UCB_BOUNDS)
        check_choice("thresholds.risk", self.risk, RISKS)
        check_number("thresholds.tolerance", self.tolerance)
        if not self.clip and self.risk != "accuracy_loss":
            raise ConfigurationError('thresholds.clip: false only with risk "accuracy_loss"; others are never negative')
        if not self.clip and self.method == "ltt_binomial":
            message = (
                'thresholds.method: "ltt_binomial" needs a 0/1 risk; without clip use "ucb" or "ltt_hoeffding_bentkus"'
            )
            raise ConfigurationError(message)
        # Whether the test needs every loss, not only their sum.
        self._bets = self.method == "ucb" and self.bound == "betting"

    def losses(self, table: ScoreTable) -> np.ndarray:
        """`(samples, exits)` float64: the risk of each sample if it exits there, from 0 (without `clip` -1) to 1."""
        if self.risk == "disagreement":
            return table.disagrees.double().numpy()
        wrong = table.wrong.double().numpy()
        if self.risk == "error":
            return wrong
        difference = wrong - wrong[:, -1:]
        return difference.clip(min=0) if self.clip else difference

    def fit(self, table: ScoreTable) -> ThresholdFit:
        if self.risk == "disagreement":
            table.require_samples("risk_controlled")
        else:
            table.require_labels(f"risk_controlled with risk {self.risk!r}")
        table = replace(table, tolerance=self.tolerance)
        table = table.select(torch.from_numpy(np.random.default_rng(self.seed).permutation(len(table))))
        if not self.per_exit:
            return self._test(table, ThresholdPath(table))
        cut = max(1, round(self.shape_fraction * len(table)))
        if cut >= len(table):
            raise ConfigurationError(
                f"risk_controlled with per_exit: found {len(table)} samples, needed: enough to split in two parts"
            )
        rows = torch.arange(len(table))
        shape, test = table.select(rows[:cut]), table.select(rows[cut:])
        fit = self._test(test, ThresholdFamily(test, optimal_family(shape, self.losses(shape))))
        fit.details["shape_samples"] = cut
        return fit

    def _test(self, table: ScoreTable, steps: ThresholdPath | ThresholdFamily) -> ThresholdFit:
        """Tests `steps` from never on, and takes the last one before the first that fails."""
        losses = self.losses(table)
        passed = self._passed(steps, self._scaled(losses), len(table))
        thresholds = steps.thresholds(max(passed, 0))
        chosen = losses[np.arange(len(table)), table.exits(thresholds.tolist()).numpy() - 1]
        details: dict[str, Any] = {
            "risk": self.risk,
            "epsilon": self.epsilon,
            "method": self.method,
            "per_exit": self.per_exit,
            "tested_samples": len(table),
            "loss_sum": float(chosen.sum()),
            "empirical_risk": float(chosen.mean()),
            "candidates": len(steps),
            "passed": passed + 1,
        }
        if self.method != "crc":
            bound = self._upper_bound(self._scaled(chosen))
            details["delta"] = self.delta
            details["risk_upper_bound"] = bound if self.clip else 2 * bound - 1
        return ThresholdFit(thresholds.tolist(), self._warnings(len(table), passed, thresholds), details)

    def _passed(self, steps: ThresholdPath | ThresholdFamily, losses: np.ndarray, samples: int) -> int:
        """The last step before the first that fails; -1 if even step 0, never, does and is not safe by definition."""
        never_is_safe = self.risk != "error"
        epsilon = float(self._scaled(self.epsilon))
        if self._bets:
            for point, current in steps.changes(losses):  # steps in between equal the one before
                if bounds.betting_p_value(current, epsilon, self.delta) > self.delta:
                    return max(point - 1, 0 if never_is_safe else -1)
            return len(steps) - 1
        if self.method == "crc":
            holds = bounds.conformal_bound(steps.sums_of_maxima(losses), samples) <= epsilon
        else:
            holds = self._p_value(steps.sums(losses), samples, epsilon) <= self.delta
        holds[0] |= never_is_safe
        return int(np.logical_and.accumulate(holds).sum()) - 1

    def _p_value(self, totals: np.ndarray, samples: int, risk: float) -> np.ndarray:
        test = bounds.binomial_p_value if self.method == "ltt_binomial" else bounds.hoeffding_bentkus_p_value
        return test(totals, samples, risk)

    def _scaled(self, risk: Any) -> Any:
        """Losses, or a risk, on the scale from 0 to 1 of the tests."""
        return risk if self.clip else (risk + 1) / 2

    def _upper_bound(self, losses: np.ndarray) -> float:
        """The 1 - delta upper confidence bound of the mean of scaled losses, by the method's own test."""
        if self._bets:
            return bounds.upper_bound(lambda risk: bounds.betting_p_value(losses, risk, self.delta), self.delta)
        total = losses.sum()
        return bounds.upper_bound(lambda risk: float(self._p_value(total, len(losses), risk)), self.delta)

    def _warnings(self, samples: int, passed: int, thresholds: np.ndarray) -> list[str]:
        if passed < 0:
            return [
                f"risk_controlled: even the last exit's {self.risk} is not shown to be at most {self.epsilon}; "
                "no sample exits early, and the bound does not hold"
            ]
        if np.isfinite(thresholds).any():
            return []
        needed = math.ceil(math.log(self.delta) / math.log1p(-self.epsilon))
        if self.method == "crc":
            needed = math.ceil(1 / self.epsilon) - 1
        message = f"risk_controlled: no threshold passes with {samples} samples"
        if needed > samples:
            message += f"; epsilon {self.epsilon} needs at least {needed}, even without a single loss"
        return [message]
