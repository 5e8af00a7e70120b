"""metrics.json and metrics_epoch_N.json."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from beem_plugin.common.files import write_json


def write_metrics(path: str | Path, metrics: dict[str, Any]) -> None:
    """Writes metrics as JSON; what is no finite number becomes null, which every JSON reader understands."""
    write_json(path, _finite(metrics))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
