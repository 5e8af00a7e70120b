"""Progress bars that a log file survives."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from beem_plugin.common.logging import is_file_friendly
from beem_plugin.common.ranks import is_main

T = TypeVar("T")


class _LineWriter:
    """Ends every state of the bar with a newline instead of overwriting it."""

    def write(self, text: str) -> None:
        text = text.replace("\r", "\n").strip("\n")
        if text:
            sys.stderr.write(text + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


def progress_bar(total: int | None, description: str, disable: bool = False, initial: int = 0, unit: str = "it") -> Any:
    """A tqdm bar; a line every ten seconds where standard error is no terminal, or with file-friendly logging."""
    options: dict[str, Any] = {"mininterval": 0.1, "dynamic_ncols": True}
    if is_file_friendly() or not sys.stderr.isatty():
        options = {"mininterval": 10.0, "file": _LineWriter(), "ncols": 100}
    return tqdm(total=total, desc=description, disable=disable or not is_main(), initial=initial, unit=unit, **options)


def counted(
    items: Iterable[T], total: int, description: str, unit: str, size: Callable[[T], int] = lambda item: 1
) -> Iterator[T]:
    """The items, with a progress bar that counts the `size` of each."""
    with progress_bar(total, description, unit=unit) as bar:
        for item in items:
            yield item
            bar.update(size(item))
