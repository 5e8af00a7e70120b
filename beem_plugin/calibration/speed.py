"""The depth at which samples exit, in every form that papers print, each under an unambiguous name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def depth_summary(exits: Tensor, exit_layers: Sequence[int]) -> dict[str, Any]:
    """
    Counts layers, not seconds.

    # Parameters

    exits : `Tensor`
        `(samples,)` int64, the 1-based exit of each sample.
    exit_layers : `Sequence[int]`
        The block that each exit reads, 1-based; the last is the depth L of the network.

    # Returns

    `dict[str, Any]`
        `layer_speedup`: L * samples / sum of the layers run (BEEM, section 4; 1.0 without samples). `layers_saved`:
        1 - mean layer / L, which PABEE's code prints as speed-up. `average_exit`, `average_layer`: means over samples.
        `exit_histogram`: samples by exit.
    """
    return histogram_summary(torch.bincount(exits.cpu() - 1, minlength=len(exit_layers)).tolist(), exit_layers)


def histogram_summary(histogram: Sequence[int], exit_layers: Sequence[int]) -> dict[str, Any]:
    """`depth_summary` from the number of samples that exit at each exit."""
    layers = torch.as_tensor(list(exit_layers), dtype=torch.float64)
    samples = sum(histogram)
    if samples == 0:
        return {
            "layer_speedup": 1.0,
            "layers_saved": 0.0,
            "average_exit": float(len(layers)),
            "average_layer": float(layers[-1]),
            "exit_histogram": list(histogram),
        }
    weights = torch.tensor(histogram, dtype=torch.float64) / samples
    average_layer = float((weights * layers).sum())
    numbers = torch.arange(1, len(layers) + 1, dtype=torch.float64)
    return {
        "layer_speedup": float(layers[-1]) / average_layer,
        "layers_saved": 1 - average_layer / float(layers[-1]),
        "average_exit": float((weights * numbers).sum()),
        "average_layer": average_layer,
        "exit_histogram": list(histogram),
    }
