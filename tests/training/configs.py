"""Configs of tiny training runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from beem_plugin.common.params import apply_overrides
from beem_plugin.common.registry import Params

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

#: Keys of metrics.json that say how a run went on the machine, not what came out.
MACHINE_KEYS = {"training_duration", "peak_worker_0_memory_MB", "peak_worker_1_memory_MB"}


def config(**overrides: Any) -> dict[str, Any]:
    """A run on the CPU; `trainer__num_epochs=3` overrides `trainer.num_epochs`."""
    base: dict[str, Any] = {
        "dataset_reader": {"type": "tiny"},
        "train_data_path": "train:37",
        "validation_data_path": "validation:21",
        "model": {"type": "tiny"},
        "data_loader": {"type": "simple", "batch_size": 8, "shuffle": True},
        "trainer": {"cuda_device": -1, "num_epochs": 3, "optimizer": {"type": "adam", "lr": 0.05}},
    }
    return apply_overrides(base, {key.replace("__", "."): value for key, value in overrides.items()})


def params(**overrides: Any) -> Params:
    return Params(config(**overrides))


def read_metrics(directory: Path, name: str = "metrics.json") -> dict[str, Any]:
    metrics = json.loads((directory / name).read_text())
    return {key: value for key, value in metrics.items() if key not in MACHINE_KEYS}


def environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(HERE)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
