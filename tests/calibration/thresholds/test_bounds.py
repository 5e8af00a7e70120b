"""p-values and bounds against independent computations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from beem_plugin.calibration.thresholds import bounds


def test_binomial_p_value_by_hand() -> None:
    # P(Bin(10, 0.2) <= 1) = 0.8^10 + 10 * 0.2 * 0.8^9
    assert bounds.binomial_p_value(np.array([1]), 10, 0.2)[0] == pytest.approx(0.8**10 + 2 * 0.8**9)


def test_hoeffding_bentkus_by_hand() -> None:
    n, risk, total = 50, 0.1, 1.5
    mean = total / n
    entropy = mean * math.log(mean / risk) + (1 - mean) * math.log((1 - mean) / (1 - risk))
    below = sum(math.comb(n, k) * risk**k * (1 - risk) ** (n - k) for k in range(3))  # ceil(1.5) = 2
    expected = min(math.exp(-n * entropy), math.e * below, 1)
    assert bounds.hoeffding_bentkus_p_value(np.array([total]), n, risk)[0] == pytest.approx(expected)


def test_hoeffding_bentkus_of_no_loss_and_of_too_much() -> None:
    p = bounds.hoeffding_bentkus_p_value(np.array([0.0, 9.0, 50.0]), 50, 0.1)
    assert p[0] == pytest.approx(0.9**50)
    assert p[1] == p[2] == 1.0


def test_betting_equals_the_formula_step_by_step() -> None:
    losses = np.random.default_rng(0).random(60) * 0.2
    risk, delta = 0.15, 0.1
    fortune, best, total, squares, variance = 1.0, 1.0, 0.0, 0.0, 0.25
    for count, loss in enumerate(losses, start=1):
        bet = min(1.0, math.sqrt(2 * math.log(1 / delta) / (len(losses) * variance)))
        fortune *= 1 - bet * (loss - risk)
        best = max(best, fortune)
        total += loss
        mean = (0.5 + total) / (count + 1)
        squares += (loss - mean) ** 2
        variance = (0.25 + squares) / (count + 1)
    assert bounds.betting_p_value(losses, risk, delta) == pytest.approx(1 / best)


@pytest.mark.parametrize("test", ["binomial", "hoeffding_bentkus", "betting"])
def test_p_values_at_the_true_risk_are_seldom_small(test: str) -> None:
    generator = np.random.default_rng(1)
    n, risk, delta, draws = 200, 0.05, 0.1, 2000
    losses = (generator.random((draws, n)) < risk).astype(float)
    if test == "betting":
        p = np.array([bounds.betting_p_value(row, risk, delta) for row in losses])
    else:
        p = getattr(bounds, f"{test}_p_value")(losses.sum(1), n, risk)
    assert (p <= delta).mean() <= delta + 3 * math.sqrt(delta * (1 - delta) / draws)


def test_upper_bound_inverts_the_test() -> None:
    from scipy.stats import beta

    bound = bounds.upper_bound(lambda risk: float(bounds.binomial_p_value(np.array(3), 100, risk)), 0.1)
    assert bound == pytest.approx(beta.ppf(0.9, 4, 97))  # Clopper-Pearson


def test_conformal_bound() -> None:
    # n/(n+1) mean + 1/(n+1)
    assert bounds.conformal_bound(np.array([4]), 99)[0] == pytest.approx(99 / 100 * 4 / 99 + 1 / 100)
