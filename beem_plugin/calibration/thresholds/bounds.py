"""Tests and upper bounds for a mean risk, from losses between 0 and 1."""

import math
from collections.abc import Callable

import numpy as np


def binomial_p_value(total: np.ndarray, samples: int, risk: float) -> np.ndarray:
    """The p-value of "the mean risk exceeds `risk`" for sums of 0/1 losses: P(Bin(n, risk) <= losses seen). Exact."""
    from scipy.special import bdtr

    return np.asarray(bdtr(np.floor(np.asarray(total, dtype=np.float64) + 1e-9), samples, risk))


def hoeffding_bentkus_p_value(total: np.ndarray, samples: int, risk: float) -> np.ndarray:
    """
    The p-value for sums of losses in [0, 1] of Bates et al. 2021, Angelopoulos et al. 2021 (Learn then Test, Eq. 5):

        min( exp(-n h(min(r, risk), risk)),  e P(Bin(n, risk) <= ceil(n r)) ),

    with r the mean loss and h the relative entropy of two coins.
    """
    from scipy.special import bdtr, xlogy

    total = np.asarray(total, dtype=np.float64)
    mean = np.minimum(total / samples, risk)
    entropy = xlogy(mean, mean / risk) + xlogy(1 - mean, (1 - mean) / (1 - risk))
    # Sums of fractions are rounded: 1e-9 keeps integers in place.
    bentkus = math.e * bdtr(np.ceil(total - 1e-9), samples, risk)
    return np.minimum(np.minimum(np.exp(-samples * entropy), bentkus), 1.0)


def betting_p_value(losses: np.ndarray, risk: float, delta: float) -> float:
    """
    The p-value for `(samples,)` losses in [0, 1] of Waudby-Smith and Ramdas (2024), as used by Bates et al. 2021 (Eq.
    10): bets on each loss being below `risk`; a capital of 1/p has probability at most p if it is not. Adapts to the
    variance of the losses, which Hoeffding's bound does not. The order of the losses must be independent of their
    values: shuffle them first. The test is optimised for the level `delta`, and valid at every level.
    """
    count = np.arange(1, len(losses) + 1)
    mean = (0.5 + np.cumsum(losses)) / (count + 1)
    variance = (0.25 + np.cumsum((losses - mean) ** 2)) / (count + 1)
    known = np.concatenate([[0.25], variance[:-1]])  # a bet may use earlier losses only
    bet = np.minimum(1.0, np.sqrt(2 * math.log(1 / delta) / (len(losses) * known)))
    fortune = np.cumsum(np.log1p(-bet * (losses - risk)))
    return float(min(1.0, math.exp(-max(0.0, float(fortune.max())))))


def upper_bound(p_value: Callable[[float], float], delta: float) -> float:
    """The smallest risk that the test rejects at level `delta`: a mean risk above it is not credible. By bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if p_value(middle) <= delta else (middle, high)
    return high


def conformal_bound(total: np.ndarray, samples: int) -> np.ndarray:
    """Conformal risk control (Angelopoulos et al. 2024, Eq. 4), losses of at most 1: (sum of losses + 1) / (n + 1)."""
    return (np.asarray(total, dtype=np.float64) + 1) / (samples + 1)
