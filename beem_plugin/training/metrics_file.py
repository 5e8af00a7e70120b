"""metrics.json and metrics_epoch_N.json."""

from __future__ import annotations

import math
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from beem_plugin.common.files import write_json


def write_metrics(path: str | Path, metrics: dict[str, Any]) -> None:
    """Writes metrics as JSON; what is no finite number becomes null, which every JSON reader understands."""
    write_json(path, _finite(metrics))


def peak_memory(accelerator: Accelerator) -> dict[str, float]:
    """`peak_worker_{rank}_memory_MB` and `peak_gpu_{rank}_memory_MB` of all processes, which must take part."""
    # Linux counts in KiB, macOS in bytes.
    unit = 1024**2 if sys.platform == "darwin" else 1024
    workers = gather_object([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit])
    peak = {f"peak_worker_{rank}_memory_MB": value for rank, value in enumerate(workers)}
    if accelerator.device.type == "cuda":
        cards = gather_object([torch.cuda.max_memory_allocated(accelerator.device) / 1024**2])
        peak.update({f"peak_gpu_{rank}_memory_MB": value for rank, value in enumerate(cards)})
    return peak


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
