"""Atomic writes, temporary folders and locks."""

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.outputs import check_place

try:
    import fcntl
except ImportError:  # not on Windows, where leftovers of killed runs stay
    fcntl = None  # type: ignore[assignment]

_SCRATCH = "beem_plugin-scratch-"
_SCRATCH_NAME = re.compile(_SCRATCH + "[a-z0-9_]{8}")
"""A name that `tempfile.mkdtemp` makes; other folders are never removed."""


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """
    A file object for `path`, for UTF-8 text or, with mode `"wb"`, bytes. Output goes to a temporary file in the same
    directory, renamed to `path` at the end of the block. A device or a pipe, such as /dev/null, is written directly; a
    symbolic link is kept and its target replaced. An `OSError` has the path as its `filename`.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"mode is {mode!r}, not 'w' or 'wb'")
    path = Path(path)
    check_place(path, str(path))
    text = {"encoding": "utf-8", "newline": "\n"} if mode == "w" else {}
    if path.exists() and not path.is_file():
        with write_errors_named(path), open(path, mode, **text) as file:  # type: ignore[call-overload]
            yield file
        return
    if path.is_symlink():
        path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    temporary = None
    try:
        with write_errors_named(path):
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
            with open(descriptor, mode, **text) as file:  # type: ignore[call-overload]
                if fcntl is not None:
                    with suppress(OSError):  # file systems without locks
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.chmod(temporary, _permissions(path))
                os.replace(temporary, path)
    except BaseException:
        if temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        raise


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Removes temporary files, of target `name` or all, that killed processes left; open ones are locked."""
    if fcntl is None:
        return
    prefix = f".{name}."
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not (entry.name.startswith(prefix if name else ".") and entry.name.endswith(".tmp")):
                continue
            with suppress(OSError), open(entry.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry.path)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder for the block. It is locked: unlocked ones were left by killed processes and are removed."""
    root = Path(tempfile.gettempdir())
    if fcntl is None:
        with tempfile.TemporaryDirectory(prefix=_SCRATCH) as name:
            yield Path(name)
        return
    for left in root.glob(f"{_SCRATCH}*"):
        if not _SCRATCH_NAME.fullmatch(left.name):
            continue
        with suppress(OSError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(left, ignore_errors=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH))
        with _locked(folder, fcntl.LOCK_EX):
            if not folder.exists():  # removed by another process between creation and lock
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


@contextmanager
def locked(folder: Path, problem: str) -> Iterator[None]:
    """Locks a folder for the block; `problem` is the error if another process, or an outer block, has locked it."""
    with ExitStack() as stack:
        try:
            if fcntl is not None:
                stack.enter_context(_locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            raise ConfigurationError(problem) from None
        except OSError:  # file systems without locks
            pass
        yield


@contextmanager
def _locked(folder: Path, operation: int) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def write_errors_named(path: str | Path) -> Iterator[None]:
    """Sets `path` as the file name of an `OSError`; errors of libraries for a full disk become one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not str(error.filename).endswith(".tmp"):
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
    except Exception as error:
        # torch.save raises RuntimeError, safetensors an error of its own; neither names the file.
        text = str(error)
        if "PytorchStreamWriter failed" in text or "unexpected pos" in text:
            raise OSError(errno.EIO, "could not be written completely (is the disk full?)", str(path)) from error
        # Libraries written in Rust: safetensors, tokenizers.
        if (found := re.search(r"([^:]*) \(os error (\d+)\)", text)) is not None:
            raise OSError(int(found[2]), found[1].strip(), str(path)) from error
        raise


def write_json(path: str | Path, obj: Any) -> None:
    """Writes indented JSON; numbers of numpy and torch become floats. NaN and infinity are a `ValueError`."""
    text = json.dumps(obj, indent=2, allow_nan=False, default=float)
    with atomic_write(path) as file:
        file.write(text + "\n")


def _permissions(path: Path) -> int:
    """The permissions of the replaced file, or the default ones of a new file."""
    with suppress(FileNotFoundError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of `folder` at the end of the block; else `folder` stays as it was."""
    new, old = _beside(folder, "new"), _beside(folder, "old")
    new.mkdir(parents=True, exist_ok=True)
    with locked(new, f"{folder}: another process writes it"):
        for left in new.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        try:
            yield new
            if folder.is_dir() and any(folder.iterdir()):
                shutil.rmtree(old, ignore_errors=True)
                folder.rename(old)
            try:
                new.rename(folder)
            except OSError as error:
                if error.errno != errno.EBUSY:  # an empty mount point
                    raise
                shutil.copytree(new, folder, dirs_exist_ok=True)
        finally:
            restore_folder(folder)
            shutil.rmtree(new, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


def restore_folder(folder: Path) -> None:
    """Restores a folder whose replacement ended between its two steps."""
    old = _beside(folder, "old")
    if old.is_dir() and not folder.exists():
        old.rename(folder)


def _beside(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{kind}")
