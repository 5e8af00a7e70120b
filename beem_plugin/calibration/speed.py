"""The depth at which samples exit, in every form that papers print, each under an unambiguous name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.exits.score_table import full_depth_cost


def depth_summary(
    exits: Tensor, exit_layers: Sequence[int], exit_costs: Sequence[float] | None = None
) -> dict[str, Any]:
    """
    The depth of samples that exit at `exits`, `(samples,)` int64 from 1, in layers, not seconds. `exit_layers` are the
    blocks that the exits read, the last the depth L; `exit_costs` (default: `exit_layers`) the layers up to each exit
    with the cost in layers of all branches up to there.

    `layer_speedup`: L * samples / sum of the layers run (BEEM, section 4; 1.0 without samples), branches counted as the
    layers that they cost. `layers_saved`: 1 - 1 / layer_speedup, which PABEE's code prints as speed-up. `average_exit`,
    `average_layer`: means over samples. `exit_histogram`: samples by exit.
    """
    histogram = torch.bincount(exits.cpu() - 1, minlength=len(exit_layers)).tolist()
    return histogram_summary(histogram, exit_layers, exit_costs)


def histogram_summary(
    histogram: Sequence[int], exit_layers: Sequence[int], exit_costs: Sequence[float] | None = None
) -> dict[str, Any]:
    """`depth_summary` from the number of samples that exit at each exit."""
    layers, costs = list(exit_layers), list(exit_costs or exit_layers)
    samples, full = sum(histogram), full_depth_cost(layers, costs)
    weights = torch.tensor(histogram, dtype=torch.float64) / max(samples, 1)

    def mean(values: Sequence[float]) -> float:
        return float((weights * torch.tensor(values, dtype=torch.float64)).sum()) if samples else float(values[-1])

    cost = mean(costs) if samples else float(full)
    return {
        "layer_speedup": full / cost,
        "layers_saved": 1 - cost / full,
        "average_exit": mean(range(1, len(layers) + 1)),
        "average_layer": mean(layers),
        "exit_histogram": list(histogram),
    }
