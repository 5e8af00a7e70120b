"""SIGTERM as an exception, so that a training run that a scheduler ends can still archive its best epoch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class SigTermReceived(KeyboardInterrupt):
    """The process was asked to end. A kind of `KeyboardInterrupt`: what handles Ctrl-C handles it too."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Within the block SIGTERM raises `SigTermReceived`; not in other threads than the main one, which cannot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise SigTermReceived
