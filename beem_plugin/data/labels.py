"""What stands in a label column, turned into a label's name or a value."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from beem_plugin.common.errors import DataError, not_allowed


def parse_label(value: Any, label_names: Sequence[str] | None, what: str) -> str | None:
    """
    A label's name; `None` for an empty or missing one.

    # Parameters

    value : `Any`
        A name, or the index of one: whole numbers stand for the names in their order where `label_names` has them.
    label_names : `Sequence[str] | None`
        The names allowed; `None` allows any.
    what : `str`
        File, line and column, for errors.
    """
    name = _as_text(value)
    if not name:
        return None
    if label_names is None or name in label_names:
        return name
    if name.isdigit() and int(name) < len(label_names):
        return label_names[int(name)]
    raise DataError(not_allowed(what, name, label_names))


def parse_score(value: Any, what: str) -> float | None:
    """The label of a regression task; `None` for an empty or missing one."""
    text = _as_text(value)
    if not text:
        return None
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{what}: found {text!r}, a number is expected")
    # The hub holds STS-B in float32, where 3.8 is 3.799999952: to be the same as 3.8 of the files.
    return round(score, 5)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value)
