"""From the value in a label column to a label's name or a score."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from beem_plugin.common.errors import DataError, not_allowed


@dataclass
class LabelRules:
    """
    What a reader's label column may hold.

    # Parameters

    names : `Sequence[str]`, optional (default = `None`)
        The names allowed, in their order; a whole number stands for the name at that position. `None` allows any name.
    regression : `bool`, optional (default = `False`)
        Labels are finite numbers.
    mapping : `dict[str, str]`, optional (default = `{}`)
        Name in the file -> label.
    skipped : `Sequence[str]`, optional (default = `[]`)
        Names in the file whose rows are left out.
    known : `Sequence[str]`, optional (default = `None`)
        The labels of a trained model, set when an archive is loaded: others are refused.
    """

    names: Sequence[str] | None = None
    regression: bool = False
    mapping: Mapping[str, str] = field(default_factory=dict)
    skipped: Sequence[str] = ()
    known: Sequence[str] | None = None

    def parse(self, value: Any, what: str) -> str | float | None:
        """
        The label of a value from a file or JSON; `None` for an empty or missing one. `what` names file, line and
        column in the `DataError` for a value that is no label.
        """
        text = self.text(value, what)
        if not text:
            return None
        if self.regression:
            return parse_score(text, what)
        label = parse_label(self.mapping.get(text, text), self.names, what)
        if label is not None and self.known is not None and label not in self.known:
            raise DataError(f"{not_allowed(what, label, self.known)}; dataset_reader.label_map renames labels")
        return label

    def skips(self, value: Any, what: str) -> bool:
        """Whether the row of this label is left out."""
        return bool(self.skipped) and self.text(value, what) in self.skipped

    def text(self, value: Any, what: str) -> str:
        """The value as text, empty for a missing one."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        if isinstance(value, (list, dict)):
            raise DataError(f"{what}: found a {type(value).__name__}, allowed: one label, a name or a number")
        if isinstance(value, str):
            return value.strip()
        # pandas writes whole numbers as 1.0 where the column has missing values.
        is_whole = isinstance(value, float) and not self.regression and value.is_integer()
        return json.dumps(int(value) if is_whole else value)


def parse_label(name: str, label_names: Sequence[str] | None, what: str) -> str | None:
    """The label's name for `name`, which may be its position in `label_names`; `None` for pandas' `nan`."""
    if name in (label_names or ()):
        return name
    if name.lower() == "nan":  # pandas' missing value; a label only where `label_names` lists it
        return None
    if label_names is None:
        return name
    if re.fullmatch(r"[0-9]{1,9}(\.0)?", name) and int(float(name)) < len(label_names):
        return label_names[int(float(name))]
    raise DataError(not_allowed(what, name, label_names))


def parse_score(text: str, what: str) -> float | None:
    """A finite number; `None` for pandas' `nan`."""
    try:
        score = float(text)
    except (ValueError, OverflowError):
        score = math.inf
    if math.isnan(score):
        return None
    if math.isinf(score):
        raise DataError(f"{what}: found {text[:40]!r}, a number is expected")
    # The hub stores STS-B in float32: 3.799999952 must equal the 3.8 of the files.
    return round(score, 5)
