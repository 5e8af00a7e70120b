"""The `allennlp` command, one file a subcommand."""

import gc
import importlib
import os
import pkgutil
import re
import signal
import sys
import threading
import traceback
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from beem_plugin.commands.subcommand import Subcommand, parse_args
from beem_plugin.common.errors import BeemError
from beem_plugin.common.logging import debugging, prepare_logging
from beem_plugin.common.plugins import defer_import, import_package, import_plugins, import_submodules

__all__ = ["Subcommand", "main"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")  # registers its subcommand

_INTERRUPTED, _TERMINATED, _BROKEN_PIPE = 130, 143, 141
_MESSAGE_LIMIT = 4000
"""Characters of an error: a table of 100,000 columns does not fill the terminal with their names."""

_TEXT_COMPONENTS = (
    "data",
    "dataset_readers.glue",
    "dataset_readers.text_classification",
    "exits",
    "calibration.thresholds",
    "objectives",
    "models.multi_exit_model",
    "execution.engine",
    "tasks.classification",
    "predictors.early_exit",
)
_NO_MEMORY = re.compile(r"can't allocate memory|DefaultCPUAllocator: not enough memory|std::bad_alloc")


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


def main(prog: str | None = None, argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status; `prog` is the program's name in help messages."""
    args = None
    try:
        args = parse_args(prog, argv)
        if args is None:
            return 0
        with sigterm_raises():
            status = _run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone, which is no error.
        _discard_stdout()
        return _BROKEN_PIPE
    except SigTermReceived:
        return _TERMINATED
    except KeyboardInterrupt:
        more = f"; {args.subcommand.after_interrupt}" if args is not None and args.subcommand.after_interrupt else ""
        print(f"interrupted{more}", file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        message = _message_for_user(error)
        if message is None:
            raise
        if debugging():
            traceback.print_exc()
        print(f"error: {message}", file=sys.stderr)
        if isinstance(error, OSError) and error.filename is None:
            _discard_stdout()
        return args.subcommand.error_status if args is not None else 1


def _run(args: Namespace) -> int:
    if args.subcommand.requires_plugins:
        rank = int(os.environ.get("RANK", "0"))  # set by torchrun and its like
        prepare_logging(file_friendly=getattr(args, "file_friendly_logging", False), rank=rank)
        args.subcommand.check(args)
        import_components(args.subcommand.only_predicts)
        import_plugins()
        for name in args.include_package:
            import_package(name)
    status = args.func(args)
    return status if isinstance(status, int) else 0


def import_components(only_predicts: bool) -> None:
    """
    Imports all components; to predict, those of text models, and the others when a name is not found among these. What
    they import stays until the process ends: the garbage collector leaves it out then and at the exit, too.
    """
    if "beem_plugin.components" in sys.modules:
        return
    gc.disable()
    try:
        if not only_predicts:
            import beem_plugin.components  # noqa: F401

            return
        for name in _TEXT_COMPONENTS:
            import_submodules(f"beem_plugin.{name}")
        defer_import("beem_plugin.components")
    finally:
        gc.freeze()
        gc.enable()


def _discard_stdout() -> None:
    """Python writes the rest of a buffer at exit, which would fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _message_for_user(error: Exception) -> str | None:
    """One line for an error that the user or the machine can mend, `None` for a fault of the program."""
    if isinstance(error, BeemError):
        message = " ".join(str(error).split("\n"))
        half = _MESSAGE_LIMIT // 2
        return message if len(message) <= _MESSAGE_LIMIT else f"{message[:half]} ... {message[-half:]}"
    if isinstance(error, OSError) and error.errno is not None:
        path = error.filename if error.filename is not None else "standard output"
        return f"{path}: {error.strerror or os.strerror(error.errno)}"
    first_line = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or _NO_MEMORY.search(str(error)):
        return f"out of memory ({first_line[:200] or 'no more can be allocated'}); a smaller batch size needs less"
    tango = sys.modules.get("tango.common.exceptions")
    if tango is not None and isinstance(error, tango.ConfigurationError):
        return " ".join(str(error).split())
    return None
