"""Thresholds whose risk on new data is bounded, with a stated probability."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from beem_plugin.calibration.thresholds import bounds
from beem_plugin.calibration.thresholds.coordinate_descent import CoordinateDescent, blend, just_above
from beem_plugin.calibration.thresholds.path import ThresholdPath
from beem_plugin.calibration.thresholds.risk import Risk
from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.exits.score_table import ScoreTable
from beem_plugin.exits.threshold_strategy import ThresholdFit, ThresholdStrategy, check_tolerance

METHODS = ("ltt_binomial", "ltt_hoeffding_bentkus", "ucb", "crc")
UCB_BOUNDS = ("betting", "hoeffding_bentkus")
MULTIPLIERS = np.geomspace(1e-3, 3.0, 30)
FAMILY_LEVELS = 32
FAMILY_STEPS = 8


@ThresholdStrategy.register("risk_controlled")
class RiskControlled(ThresholdStrategy):
    """
    The most permissive thresholds whose mean risk on new data of the same kind is at most `epsilon`: with probability
    1 - `delta` over the draw of the calibration data (Learn then Test, Angelopoulos et al. 2021; upper confidence
    bounds, Bates et al. 2021), or in expectation (conformal risk control, Angelopoulos et al. 2024). For early exits:
    Schuster et al. 2022 (CALM), Jazbec et al. 2024.

    **One threshold** (`per_exit` false). Thresholds are tested one after the other, from never towards permissive, and
    the last one before the first that fails is taken. Each test has level delta, yet so has the whole sequence: an
    error requires that the first threshold whose true risk exceeds epsilon passes its test. All real numbers are
    tested, since the losses change at observed scores only and all of these are tested; so the grid, though taken from
    the same data, costs no confidence, and the risk need not be monotone in the threshold.

    **One threshold an exit** (`per_exit` true). A random half of the data (`shape_fraction`) gives a sequence of
    threshold lists, from never to permissive: the lists that are optimal for risk + multiplier * cost, in the order of
    their risk there. The other half tests the sequence as above ("Pareto testing", Laufer-Goldshtein et al. 2023). The
    alternative, exit after exit on all data with delta / (L - 1) each, must also split epsilon before the data are
    seen, and spends part of it on exits without samples; with twelve exits this costs more than half of the data. With
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
        `"ltt_binomial"`, exact for 0/1 risks; `"ltt_hoeffding_bentkus"`; `"ucb"`: an upper confidence bound at each
        threshold, all of the more conservative ones included, must be at most epsilon; `"crc"`: in expectation, with
        each sample's loss replaced by its largest at any more conservative threshold, since the theorem needs losses
        that are monotone in the threshold.
    bound : `str`, optional (default = `"betting"`)
        The upper bound of `"ucb"`: `"betting"` (Waudby-Smith and Ramdas) or `"hoeffding_bentkus"`.
    clip : `bool`, optional (default = `True`)
        Whether a sample that only the early exit gets right counts 0 (true) or -1 (false; only `"accuracy_loss"`, and
        not with `"ltt_binomial"`). Clipped tests are exact and need fewer samples; unclipped ones allow more where many
        samples are right at an early exit only.
    per_exit : `bool`, optional (default = `False`)
    shape_fraction : `float`, optional (default = `0.5`)
    seed : `int`, optional (default = `0`)
        Seed of the split and of the order of the samples in the betting bound.
    tolerance : `float`, optional (default = `None`)
        For a regression: a value farther than this from the label, or for `"disagreement"` from the last exit's, counts
        as wrong. CATs (Schuster et al. 2021) takes `"disagreement"` with 0.5 on STS-B.
    """

    def __init__(
        self,
        epsilon: float = 0.02,
        risk: str = "accuracy_loss",
        delta: float = 0.1,
        method: str = "ltt_binomial",
        bound: str = "betting",
        clip: bool = True,
        per_exit: bool = False,
        shape_fraction: float = 0.5,
        seed: int = 0,
        tolerance: float | None = None,
    ) -> None:
        for key, value in (("epsilon", epsilon), ("delta", delta), ("shape_fraction", shape_fraction)):
            if not 0 < value < 1:
                raise ConfigurationError(f"thresholds.{key}: found {value}, allowed: above 0 and below 1")
        if method not in METHODS:
            raise ConfigurationError(not_allowed("thresholds.method", method, METHODS))
        if bound not in UCB_BOUNDS:
            raise ConfigurationError(not_allowed("thresholds.bound", bound, UCB_BOUNDS))
        self.risk = Risk(risk, clip)
        if method == "ltt_binomial" and not self.risk.is_binary:
            raise ConfigurationError(
                'thresholds.method: "ltt_binomial" needs a 0/1 risk; without clip use "ucb" or "ltt_hoeffding_bentkus"'
            )
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.bound = bound
        self.per_exit = per_exit
        self.shape_fraction = shape_fraction
        self.seed = seed
        self.tolerance = check_tolerance(tolerance)

    def fit(self, table: ScoreTable) -> ThresholdFit:
        if self.risk.needs_labels:
            table.require_labels(f"risk_controlled with risk {self.risk.name!r}")
        elif len(table) == 0:
            raise ConfigurationError("risk_controlled: found no calibration sample, needed: at least one")
        table = replace(table, tolerance=self.tolerance)
        order = torch.from_numpy(np.random.default_rng(self.seed).permutation(len(table)))
        if not self.per_exit:
            return self._fit_shared(table.select(order))
        cut = max(1, round(self.shape_fraction * len(table)))
        if cut >= len(table):
            raise ConfigurationError(
                f"risk_controlled with per_exit: found {len(table)} samples, needed: enough to split in two parts"
            )
        return self._fit_family(table.select(order[:cut]), table.select(order[cut:]))

    def _fit_shared(self, table: ScoreTable) -> ThresholdFit:
        path = ThresholdPath(table)
        losses = self.risk.per_exit(table)
        judged = path.running_maximum(losses) if self.method == "crc" else losses
        if self._bets:
            passed = self._prefix_by_betting(path.changes(self.risk.scaled(judged)), len(path), len(table))
        else:
            passed = self._prefix(path.sums(judged), len(table))
        thresholds = [path.threshold(max(passed, 0))] * (table.num_exits - 1)
        return self._report(table, thresholds, losses, tested=len(path), passed=passed)

    def _fit_family(self, shape: ScoreTable, test: ScoreTable) -> ThresholdFit:
        family = threshold_family(shape, self.risk.per_exit(shape))
        losses = self.risk.per_exit(test)
        rows = np.arange(len(test))
        member = np.stack([losses[rows, test.exits(thresholds.tolist()).numpy() - 1] for thresholds in family])
        judged = np.maximum.accumulate(member, axis=0) if self.method == "crc" else member
        if self._bets:
            scaled = self.risk.scaled(judged)
            passed = self._prefix_by_betting(iter(enumerate(scaled)), len(family), len(test))
        else:
            passed = self._prefix(judged.sum(axis=1), len(test))
        fit = self._report(test, family[max(passed, 0)].tolist(), losses, tested=len(family), passed=passed)
        fit.details["shape_samples"] = len(shape)
        return fit

    @property
    def _bets(self) -> bool:
        """Whether the test needs every loss, not only their sum."""
        return self.method == "ucb" and self.bound == "betting"

    def _p_value(self, totals: np.ndarray, samples: int, risk: float) -> np.ndarray:
        test = bounds.binomial_p_value if self.method == "ltt_binomial" else bounds.hoeffding_bentkus_p_value
        return test(totals, samples, risk)

    def _prefix(self, totals: np.ndarray, samples: int) -> int:
        """The last point before the first that fails; -1 if even point 0, never, does."""
        if self.method == "crc":
            holds = bounds.conformal_bound(totals, samples) <= self.epsilon
        else:
            holds = self._p_value(self._scaled_totals(totals, samples), samples, self._scaled_epsilon) <= self.delta
        if self.risk.never_is_safe:
            holds[0] = True
        return int(np.logical_and.accumulate(holds).sum()) - 1

    def _prefix_by_betting(self, changes: Iterator[tuple[int, np.ndarray]], points: int, samples: int) -> int:
        """As `_prefix`, for a test that needs every loss; points without a change equal the previous one."""
        for point, losses in changes:
            if point == 0 and self.risk.never_is_safe:
                # Never is safe by definition, but the thresholds before the first change, which have no loss either,
                # must be tested.
                if bounds.betting_p_value(losses, self._scaled_epsilon, self.delta) > self.delta:
                    return 0
                continue
            if bounds.betting_p_value(losses, self._scaled_epsilon, self.delta) > self.delta:
                return point - 1
        return points - 1

    @property
    def _scaled_epsilon(self) -> float:
        return self.epsilon if self.risk.is_binary else (self.epsilon + 1) / 2

    def _scaled_totals(self, totals: np.ndarray, samples: int) -> np.ndarray:
        return totals if self.risk.is_binary else (totals + samples) / 2

    def _report(
        self, table: ScoreTable, thresholds: list[float], losses: np.ndarray, tested: int, passed: int
    ) -> ThresholdFit:
        samples = len(table)
        exits = table.exits(thresholds).numpy() - 1
        chosen = losses[np.arange(samples), exits]
        details: dict[str, Any] = {
            "risk": self.risk.name,
            "epsilon": self.epsilon,
            "method": self.method,
            "per_exit": self.per_exit,
            "tested_samples": samples,
            "loss_sum": float(chosen.sum()),
            "empirical_risk": float(chosen.mean()),
            "candidates": tested,
            "passed": passed + 1,
        }
        if self.method != "crc":
            details["delta"] = self.delta
            details["risk_upper_bound"] = self.risk.unscaled(self._upper_bound(chosen))
        return ThresholdFit(thresholds, self._warnings(samples, passed, thresholds), details)

    def _upper_bound(self, losses: np.ndarray) -> float:
        """The 1 - delta upper confidence bound of the mean (scaled) loss, by the method's own test."""
        scaled = self.risk.scaled(losses)
        if self._bets:
            return bounds.upper_bound(lambda risk: bounds.betting_p_value(scaled, risk, self.delta), self.delta)
        total = scaled.sum()
        return bounds.upper_bound(lambda risk: float(self._p_value(total, len(scaled), risk)), self.delta)

    def _warnings(self, samples: int, passed: int, thresholds: list[float]) -> list[str]:
        if passed < 0:
            return [
                f"risk_controlled: even the last exit's {self.risk.name} is not shown to be at most {self.epsilon}; "
                "no sample exits early, and the bound does not hold"
            ]
        if any(math.isfinite(threshold) for threshold in thresholds):
            return []
        needed = math.ceil(math.log(self.delta) / math.log1p(-self.epsilon))
        if self.method == "crc":
            needed = math.ceil(1 / self.epsilon) - 1
        message = f"risk_controlled: no threshold passes with {samples} samples"
        if needed > samples:
            message += f"; epsilon {self.epsilon} needs at least {needed}, even without a single loss"
        return [message]


def threshold_family(table: ScoreTable, loss: np.ndarray) -> list[np.ndarray]:
    """
    Lists of `(exits - 1,)` oriented thresholds from never to permissive: optimal for mean loss + multiplier * cost at
    rising multipliers, without dominated ones, in ascending order of loss. Steps between neighbours are added, because
    few samples have few optima.
    """
    cost = np.array(table.exit_layers, dtype=np.float64) / table.exit_layers[-1]
    descent = CoordinateDescent(table, loss, cost, FAMILY_LEVELS)
    never = np.full(table.num_exits - 1, math.inf)
    members = [never]
    for multiplier in MULTIPLIERS.tolist():
        members.append(descent.best(multiplier, [members[-1], never]))
    by_loss = sorted(((*descent.means(member), number) for number, member in enumerate(members)))
    kept, fastest = [never], math.inf
    for _, mean_cost, number in by_loss:
        if mean_cost < min(fastest, 1.0):
            kept.append(members[number])
            fastest = mean_cost
    top = just_above(table)
    steps = [step / FAMILY_STEPS for step in range(1, FAMILY_STEPS + 1)]
    return [never, *(blend(slow, fast, step, top) for slow, fast in pairwise(kept) for step in steps)]
