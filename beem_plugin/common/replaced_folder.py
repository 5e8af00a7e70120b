"""A folder that is written as a whole."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import locked


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """
    A new folder that takes the place of `folder` at the end of the block. After an error, or when the process is
    killed, `folder` is as before; what a killed process left beside it is removed by the next one.
    """
    new, old = _new(folder), _old(folder)
    new.mkdir(parents=True, exist_ok=True)
    with locked(new) as is_free:
        if not is_free:
            raise ConfigurationError(f"{folder}: another process writes it")
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
    if _old(folder).is_dir() and not folder.exists():
        _old(folder).rename(folder)


def _new(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.new")


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")
