"""Seconds on a clock: synchronised, warmed up, the cases taken in turns so that a drifting machine hits all alike."""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from beem_plugin.common.progress import progress_bar

SURE = 0.005
"""Relative standard error below which a case needs no further repeat, from three on."""


@dataclass
class Timing:
    """Seconds of each repeat, and from answer to answer of the last; bytes on the GPU at most, else `None`."""

    seconds: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    peak_memory: int | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def relative_error(self) -> float:
        """Standard error of the mean over the mean; with two repeats or more."""
        return statistics.stdev(self.seconds) / len(self.seconds) ** 0.5 / statistics.fmean(self.seconds)

    def summary(self) -> dict[str, Any]:
        """`seconds` (the median), `seconds_min`, `seconds_max`, and every repeat."""
        return {
            "seconds": self.median,
            "seconds_min": min(self.seconds),
            "seconds_max": max(self.seconds),
            "seconds_all": list(self.seconds),
            "peak_memory_mib": None if self.peak_memory is None else self.peak_memory / 2**20,
        }


def ratio(numerator: Timing, denominator: Timing) -> float:
    """The median of the repeats' own ratios: two cases of one repeat ran next to each other."""
    return statistics.median(a / b for a, b in zip(numerator.seconds, denominator.seconds, strict=True))


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p95 and p99 in milliseconds, by the nearest rank."""
    ordered = sorted(values)
    # The least value that so many percent do not exceed; in whole numbers, so that no rounding moves the rank.
    ranks = {percent: -(-percent * len(ordered) // 100) for percent in PERCENTILES}
    return {f"latency_ms_p{percent}": 1000 * ordered[rank - 1] for percent, rank in ranks.items()}


PERCENTILES = (50, 95, 99)


def measure(
    cases: Mapping[str, Callable[[], Iterable[Any]]],
    repeats: int,
    device: torch.device,
    seed: int = 0,
    time_budget: float = math.inf,
    description: str = "",
) -> dict[str, Timing]:
    """
    Times `cases`, each of which gives an iterable that does the work as it is consumed and yields once a result is on
    the host. After a warm-up of every case, of two runs on a GPU, where graphs are captured for what comes a second
    time, each of `repeats` runs all cases, in an order of its own drawn from `seed`. There are fewer if all cases are
    sure (see `SURE`), or after `time_budget` seconds; at least one is made. Without a `description` there is no
    progress bar.
    """
    timings = {name: Timing() for name in cases}
    warm_ups = 2 if device.type == "cuda" else 1
    started = time.perf_counter()
    order = list(cases)
    shuffle = random.Random(seed)
    total = len(cases) * (repeats + 1)
    with progress_bar(total, description, disable=not description, unit=" runs") as bar:
        for name, case in cases.items():
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            for _ in range(warm_ups):
                _consume(case, device)
            if device.type == "cuda":
                timings[name].peak_memory = torch.cuda.max_memory_allocated(device)
            bar.update()
        for repeat in range(repeats):
            if repeat and time.perf_counter() - started > time_budget:
                break
            if repeat >= 3 and all(timing.relative_error < SURE for timing in timings.values()):
                break
            shuffle.shuffle(order)
            for name in order:
                seconds, timings[name].latencies = _consume(cases[name], device)
                timings[name].seconds.append(seconds)
                bar.update()
    return timings


def _consume(case: Callable[[], Iterable[Any]], device: torch.device) -> tuple[float, list[float]]:
    latencies = []
    _synchronize(device)
    start = before = time.perf_counter()
    for _ in case():
        now = time.perf_counter()
        latencies.append(now - before)
        before = now
    _synchronize(device)
    return time.perf_counter() - start, latencies


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
