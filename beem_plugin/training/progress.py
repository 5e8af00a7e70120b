"""The progress bar of training and evaluation."""

from __future__ import annotations

import re
import sys
from typing import Any

from tqdm import tqdm

from beem_plugin.common.logging import is_file_friendly

PER_EXIT = re.compile(r"(^|_)exit_?\d+(_|$)")


class _LineWriter:
    """Ends every state of the bar with a newline instead of overwriting it."""

    def write(self, text: str) -> None:
        text = text.replace("\r", "\n").strip("\n")
        if text:
            sys.stderr.write(text + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


def progress_bar(total: int, description: str, disable: bool = False, initial: int = 0) -> Any:
    """A tqdm bar; complete lines for output to a file, see `is_file_friendly`."""
    options: dict[str, Any] = {"mininterval": 0.1, "dynamic_ncols": True}
    if is_file_friendly():
        options = {"mininterval": 10.0, "file": _LineWriter(), "ncols": 100}
    return tqdm(total=total, desc=description, disable=disable, initial=initial, **options)


def description_from_metrics(metrics: dict[str, float]) -> str:
    """The metrics for the bar, without those of single exits and those whose names begin with "_"."""
    shown = {name: value for name, value in metrics.items() if not name.startswith("_") and not PER_EXIT.search(name)}
    return ", ".join(f"{name}: {value:.4f}" for name, value in shown.items())
