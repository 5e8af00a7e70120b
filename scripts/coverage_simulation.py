"""
How often does a bound on new data fail, and how much does it give away? Calibrates many times on samples drawn from a
population whose risk is known, for every method, and prints a table.

    python scripts/coverage_simulation.py                       # a made-up population
    python scripts/coverage_simulation.py --trace T.npz --policy P.jsonnet
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np
import torch

from beem_plugin.calibration.speed import depth_summary
from beem_plugin.calibration.thresholds import RiskControlled, ScoreTable
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.params import load_config
from beem_plugin.exits.policies import ExitPolicy

METHODS = {
    "LTT, binomial": {"method": "ltt_binomial"},
    "LTT, Hoeffding-Bentkus": {"method": "ltt_hoeffding_bentkus"},
    "UCB, betting": {"method": "ucb", "bound": "betting"},
    "UCB, betting, unclipped": {"method": "ucb", "bound": "betting", "clip": False},
    "conformal (in expectation)": {"method": "crc"},
}


def made_up_trace(samples: int = 20_000, num_exits: int = 12, seed: int = 0) -> ExitTrace:
    """Easy and hard samples; deeper exits are better; the errors of neighbouring exits are related."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, samples)
    ease = np.clip(1.2 - 0.7 * generator.normal(size=samples), -0.3, 3)
    logits = np.zeros((samples, num_exits, 2), dtype=np.float32)
    noise = np.zeros((samples, 2))
    for column in range(num_exits):
        noise = 0.8 * noise + 0.6 * generator.normal(size=(samples, 2))
        logits[:, column] = 1.2 * noise
        logits[np.arange(samples), column, labels] += (0.3 + 2 * column / (num_exits - 1)) * ease
    return ExitTrace(torch.from_numpy(logits), torch.from_numpy(labels))


class Coverage(NamedTuple):
    violation_rate: float  # of calibrations, with a true risk above epsilon
    mean_risk: float  # of calibrations, true
    mean_speedup: float  # of calibrations, in layers of the population
    never: int  # calibrations without early exits


def simulate_coverage(
    population: ScoreTable, strategy: RiskControlled, samples: int, draws: int = 1000, seed: int = 0
) -> Coverage:
    """
    Takes `population` as the whole population, in which every risk is known exactly, and calibrates `draws` times on
    `samples` members drawn with replacement.
    """
    generator = np.random.default_rng(seed)
    losses = strategy.losses(population)
    rows = np.arange(len(population))
    risks, speedups, never = [], [], 0
    for _ in range(draws):
        drawn = torch.from_numpy(generator.integers(len(population), size=samples))
        exits = population.exits(strategy.fit(population.select(drawn)).thresholds)
        risks.append(float(losses[rows, exits.numpy() - 1].mean()))
        speedups.append(depth_summary(exits, population.exit_layers, population.costs)["layer_speedup"])
        never += bool((exits == population.num_exits).all())
    violations = sum(risk > strategy.epsilon for risk in risks)
    return Coverage(violations / draws, float(np.mean(risks)), float(np.mean(speedups)), never)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", metavar="T.npz", help="the population; without, one is made up")
    parser.add_argument("--policy", metavar="P.jsonnet", help="whose score is used; its own thresholds are not")
    parser.add_argument("--samples", type=int, nargs="+", default=[300, 1000], help="sizes of the calibration data")
    parser.add_argument("--epsilon", type=float, default=0.03)
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--per-exit", action="store_true", help="also one threshold an exit (slow)")
    args = parser.parse_args()

    trace = ExitTrace.load(args.trace) if args.trace else made_up_trace()
    config = load_config(args.policy) if args.policy else {"type": "max_probability", "thresholds": 0.9}
    policy = ExitPolicy.from_params(config)
    policy.calibrate(trace)
    population = policy.score_table(trace)  # type: ignore[attr-defined]
    print(f"{len(trace)} samples, epsilon {args.epsilon}, delta {args.delta}, {args.draws} draws")
    print(f"{'risk':14} {'method':38} {'n':>6} {'violated':>9} {'mean risk':>10} {'speed-up':>9} {'never':>6} {'s':>6}")
    settings = [(name, values) for name, values in METHODS.items()]
    if args.per_exit:
        settings += [(f"{name}, an exit", {**values, "per_exit": True}) for name, values in METHODS.items()]
    for risk in ("accuracy_loss", "disagreement"):
        for name, values in settings:
            if risk == "disagreement" and "clip" in values:
                continue
            for samples in args.samples:
                started = time.perf_counter()
                strategy = RiskControlled(epsilon=args.epsilon, delta=args.delta, risk=risk, **values)
                coverage = simulate_coverage(population, strategy, samples, args.draws)
                print(
                    f"{risk:14} {name:38} {samples:6} {coverage.violation_rate:9.3f} {coverage.mean_risk:10.4f} "
                    f"{coverage.mean_speedup:8.2f}x {coverage.never:6} {time.perf_counter() - started:6.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
