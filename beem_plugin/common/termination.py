"""SIGTERM as an exception, so that a training that a scheduler stops archives its best epoch."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class SigTermReceived(KeyboardInterrupt):
    """Handlers of Ctrl-C also apply."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM raises `SigTermReceived` within the block. No effect in other threads than the main one."""
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
