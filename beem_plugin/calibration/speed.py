"""How deep the samples went, in every form in which papers print it, each under a name that says which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from beem_plugin.calibration.trace import ExitTrace


def depth_summary(exits: Tensor, exit_layers: Sequence[int]) -> dict[str, Any]:
    """
    Counts layers, not seconds.

    # Parameters

    exits : `Tensor`
        `(samples,)` int64, the 1-based exit at which each sample left.
    exit_layers : `Sequence[int]`
        The block that each exit reads, 1-based; the last is the depth L of the network.

    # Returns

    `dict[str, Any]`
        `layer_speedup`: L * samples / sum of the layers run (BEEM, section 4; 1.0 without samples). `layers_saved`:
        1 - mean layer / L, what PABEE's code prints as speed-up. `average_exit`, `average_layer`: means over samples.
        `exit_histogram`: samples that left at each exit.
    """
    return histogram_summary(torch.bincount(exits.cpu() - 1, minlength=len(exit_layers)).tolist(), exit_layers)


def histogram_summary(histogram: Sequence[int], exit_layers: Sequence[int]) -> dict[str, Any]:
    """`depth_summary` of how many samples left at each exit."""
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


def trace_depth(trace: ExitTrace, exits: Tensor) -> dict[str, Any]:
    """`depth_summary` of the samples of `trace`; where their tokens leave one by one, the speed-ups are the tokens'."""
    return {**depth_summary(exits, trace.exit_layers), **_depth_of_tokens(trace)}


def trace_histogram_depth(trace: ExitTrace, histogram: Sequence[int]) -> dict[str, Any]:
    """`trace_depth` of how many samples left at each exit."""
    return {**histogram_summary(histogram, trace.exit_layers), **_depth_of_tokens(trace)}


def _depth_of_tokens(trace: ExitTrace) -> dict[str, Any]:
    return {} if trace.token_depth is None else trace.token_depth.summary()
