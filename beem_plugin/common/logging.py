"""Log messages to standard error and to `out.log` of a run. Standard output is for results."""

import logging
import os
import sys
from pathlib import Path

_FORMAT = "%(asctime)s - %(levelname)s - %(name)s - %(message)s"
_NOISY = ("fsspec", "filelock", "httpcore", "httpx", "matplotlib", "tango.common", "urllib3")
_installed: list[logging.Handler] = []
_file_friendly = False


def debugging() -> bool:
    """Whether `ALLENNLP_DEBUG` enables tracebacks and debug messages."""
    return os.environ.get("ALLENNLP_DEBUG", "").lower() not in ("", "0", "false", "no")


def is_file_friendly() -> bool:
    """Whether progress bars write few complete lines, for output to a file."""
    return _file_friendly or os.environ.get("FILE_FRIENDLY_LOGGING", "").lower() in ("1", "true", "yes")


def prepare_logging(
    serialization_dir: str | Path | None = None, file_friendly: bool = False, rank: int = 0, world_size: int = 1
) -> None:
    """Configures the root logger: standard error (of other ranks than 0 only errors) and `out.log` in the directory."""
    global _file_friendly
    _file_friendly = file_friendly
    logging.raiseExceptions = False  # a full disk is reported once, where results are written
    root = logging.getLogger()
    close_logging()
    named = logging.getLevelName(os.environ.get("ALLENNLP_LOG_LEVEL", "INFO").upper())
    level = logging.DEBUG if debugging() else named if isinstance(named, int) else logging.INFO
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(level if rank == 0 else logging.ERROR)
    _installed[:] = [console]
    if serialization_dir is not None:
        Path(serialization_dir).mkdir(parents=True, exist_ok=True)
        name = "out.log" if world_size == 1 else f"out_worker{rank}.log"
        _installed.append(logging.FileHandler(Path(serialization_dir) / name, encoding="utf-8"))
    for handler in _installed:
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)
    root.setLevel(level)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


def close_logging() -> None:
    """Removes the handlers that `prepare_logging` installed."""
    for handler in _installed:
        logging.getLogger().removeHandler(handler)
        handler.close()
    _installed.clear()
