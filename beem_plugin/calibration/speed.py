"""The depth at which samples, or their tokens, exit, in every form that papers print, under unambiguous names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beem_plugin.calibration.trace_file import require_arrays
from beem_plugin.common.errors import DataError
from beem_plugin.exits.score_table import full_depth_cost

ARRAYS = ("token_depth_counts", "token_depth_macs", "token_depth_full")


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


@dataclass
class TokenDepth:
    counts: Tensor  # (samples, layers) int64: a sample's tokens by their last layer
    macs: Tensor  # (samples, 2) float64: multiply-accumulates at full depth, and those that are computed
    full_depth: int  # which speed-ups are relative to

    def __len__(self) -> int:
        return self.counts.shape[0]

    def select(self, rows: Tensor) -> TokenDepth:
        return TokenDepth(self.counts[rows], self.macs[rows], self.full_depth)

    def summary(self) -> dict[str, Any]:
        """Speed-ups in layers and multiply-accumulates, without padding, and a histogram; empty without tokens."""
        histogram = self.counts.sum(0)
        tokens = int(histogram.sum())
        if tokens == 0:
            return {}
        average = float((histogram * torch.arange(1, len(histogram) + 1)).sum()) / tokens
        full, spent = self.macs.sum(0).tolist()
        return {
            "layer_speedup": self.full_depth / average,
            "layers_saved": 1 - average / self.full_depth,
            "average_layer": average,
            "token_exit_histogram": histogram.tolist(),
            "mac_speedup": full / spent,
        }

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The arrays of a trace file."""
        values = (self.counts.numpy().astype(np.int32), self.macs.numpy(), np.array(self.full_depth))
        return dict(zip(ARRAYS, values, strict=True))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> TokenDepth | None:
        """The reverse of `to_arrays`; `None` if the arrays are missing, as in older files."""
        if not any(name in arrays for name in ARRAYS):
            return None
        require_arrays(arrays, ARRAYS)
        counts, macs, full = (arrays[name] for name in ARRAYS)
        if counts.dtype.kind not in "iu" or full.dtype.kind not in "iu" or macs.dtype.kind != "f" or full.shape != ():
            raise DataError(
                f"{', '.join(ARRAYS)} must be integers, floating numbers and an integer, found {counts.dtype}, "
                f"{macs.dtype}, {full.dtype} of shape {full.shape}"
            )
        return cls(torch.from_numpy(counts.astype(np.int64)), torch.from_numpy(macs.astype(np.float64)), int(full))

    def check(self, samples: int) -> None:
        """Raises a `DataError` unless the arrays fit this number of samples."""
        if self.counts.ndim != 2 or len(self) != samples or self.macs.shape != (samples, 2):
            raise DataError(
                f"trace: {samples} samples, but token depths have shapes {tuple(self.counts.shape)} and "
                f"{tuple(self.macs.shape)}, allowed: ({samples}, layers) and ({samples}, 2)"
            )
        if bool((self.counts < 0).any()) or not bool((self.macs > 0).all()) or not bool(self.macs.isfinite().all()):
            raise DataError("trace: token depths hold a negative count, or multiply-accumulates not above 0")
        if self.full_depth < self.counts.shape[1]:
            raise DataError(
                f"trace: token depths of {self.counts.shape[1]} layers, but a full depth of {self.full_depth}"
            )
