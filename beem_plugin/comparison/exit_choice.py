"""Chooses exits and the depth of an encoder on validation data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.curves import Curve, threshold_curve
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.comparison.result import build


@dataclass
class ExitChoice:
    """A set of exits."""

    exit_layers: list[int]  # for `exit_layers` of an encoder: rising, the last one included
    area: float  # mean accuracy in points between the two speeds


def choose_exits(
    trace: ExitTrace,
    num_exits: int,
    policy: str | Mapping[str, Any] = "max_probability",
    speeds: tuple[float, float] = (1.0, 3.0),
) -> list[ExitChoice]:
    """
    Ranks all sets of `num_exits` exits by the area under their accuracy-speed curve, best first. The best area of many
    is optimistic: report it on other data.

    # Parameters

    trace : `ExitTrace`
        Of a network with more exits, on labelled validation data.
    num_exits : `int`
        The last one included.
    policy : `str` or `dict`, optional (default = `"max_probability"`)
        A rule with a score and without parameters to fit; its threshold is swept.
    speeds : `tuple[float, float]`, optional (default = `(1.0, 3.0)`)
        Relative to the network without early exits; branches of the chosen exits that were passed are counted.

    # Raises

    `ConfigurationError`
        If no set of that size reaches both speeds.
    """
    if trace.is_regression or not trace.has_labels:
        raise ConfigurationError("choose_exits: found a trace without class labels, allowed: one with a label a sample")
    if not 2 <= num_exits <= trace.num_exits:
        raise ConfigurationError(f"num_exits: found {num_exits}, allowed: 2 to {trace.num_exits}")
    chosen = []
    for early in combinations(range(trace.num_exits - 1), num_exits - 1):
        columns = [*early, trace.num_exits - 1]
        area = _curve(trace, columns, policy).area(*speeds)
        if area is not None:
            chosen.append(ExitChoice([trace.exit_layers[column] for column in columns], area))
    if not chosen:
        raise ConfigurationError(f"speeds: found {speeds[0]:g} to {speeds[1]:g}, which no {num_exits} exits reach")
    return sorted(chosen, key=lambda choice: -choice.area)


def choose_depth(correct: Mapping[int, Tensor | Sequence[bool]]) -> int:
    """
    The smallest depth whose accuracy is within one standard error of the best one's (the one-standard-error rule,
    Breiman et al. 1984).

    # Parameters

    correct : `dict[int, Tensor]`
        For each number of layers `(samples,)` whether a network of that depth is right, or how many of several seeds
        are, from 0 to 1; on the same validation data.
    """
    right = {depth: torch.as_tensor(values).double() for depth, values in correct.items()}
    if not right or len({len(values) for values in right.values()} | {0}) != 2:
        raise ConfigurationError(
            "choose_depth: found no sample or different numbers of them, allowed: the same samples"
        )
    best = max(right.values(), key=lambda values: float(values.mean()))
    enough = float(best.mean()) - float(best.std(correction=0)) / len(best) ** 0.5
    return min(depth for depth, values in right.items() if float(values.mean()) >= enough)


def _curve(trace: ExitTrace, columns: list[int], policy: str | Mapping[str, Any]) -> Curve:
    """The curve of the network with these exits alone."""
    layers = np.array(trace.exit_layers, dtype=np.float64)[columns]
    branches = np.diff(np.array(trace.exit_costs) - trace.exit_layers, prepend=0.0)[columns]
    part = replace(
        trace,
        logits=trace.logits[:, columns],
        signals={name: values[:, columns] for name, values in trace.signals.items()},
        meta={**trace.meta, "exit_layers": layers.astype(int).tolist(), "exit_costs": list(layers + branches.cumsum())},
    )
    rule = build({"type": policy} if isinstance(policy, str) else policy, part)
    if rule.score_key() is None:
        raise ConfigurationError(
            f"policy: found {rule.registered_name}, allowed: a rule with a score, as its threshold is swept"
        )
    return threshold_curve(rule.scores(part))
